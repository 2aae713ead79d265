"""Rows of the n-gram memory's table.

Legend: T rows · R table rows of a token · A rows of the table · K columns of one.
"""

import torch
from torch import Tensor

from deepinfer import formats


def engram_gather(codes_AK: Tensor, powers_AG: Tensor, rows_TR: Tensor) -> Tensor:
    """bfloat16 [T, R · K] of E4M3 rows and their E8M0 powers per 32 columns, exactly; zeros for a negative number."""
    rows_N, device, width = rows_TR.flatten(), rows_TR.device, codes_AK.shape[1]
    shape = len(rows_TR), rows_TR.shape[1] * width
    if not len(codes_AK):
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    there_N = rows_N.clamp(min=0)
    codes = codes_AK.view(torch.uint8)[there_N.to(codes_AK.device)].to(device)
    powers = powers_AG[there_N.to(powers_AG.device)].to(device)
    numbers_NK = formats.dequantise_fp8_rows(codes, powers, torch.bfloat16)
    return torch.where(rows_N.unsqueeze(1) < 0, torch.zeros_like(numbers_NK), numbers_NK).view(shape)
