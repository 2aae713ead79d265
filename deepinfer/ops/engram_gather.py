"""Rows of the n-gram memory's table.

Legend: T rows · R table rows of a token · A rows of the table · K columns of one.
"""

import torch
from torch import Tensor

from deepinfer import formats


def engram_gather(codes_AK: Tensor, powers_AG: Tensor, rows_TR: Tensor) -> Tensor:
    """bfloat16 [T, R · K] of E4M3 rows and their E8M0 powers per 32 columns, exactly."""
    rows, device = rows_TR.flatten(), rows_TR.device
    codes = codes_AK.view(torch.uint8)[rows.to(codes_AK.device)].to(device)
    powers = powers_AG[rows.to(powers_AG.device)].to(device)
    return formats.dequantise_fp8_rows(codes, powers, torch.bfloat16).view(
        len(rows_TR), rows_TR.shape[1] * codes_AK.shape[1]
    )
