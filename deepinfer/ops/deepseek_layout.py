"""Scales as DeepSeek's packages read them: four E8M0 bytes in one int32, columns adjacent in groups of 16 bytes.

Legend: R rows (tokens or outputs) · G scale groups of 32 columns · P packed scales, G / 4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

PACK = 4  # bytes in a packed scale; the first group in the lowest
ALIGNED_ROWS = 4  # int32 rows in 16 bytes


def packed_scales(scale_RG: Tensor) -> Tensor:
    """E8M0 bytes uint8 […, R, G] as int32 […, R, P], rows adjacent in memory, padded to a multiple of 16 bytes.

    Missing groups at the end become 2^0: no number belongs to them.
    """
    assert scale_RG.dtype == torch.uint8, "scales are E8M0 bytes"
    whole = F.pad(scale_RG, (0, -scale_RG.shape[-1] % PACK), value=127).contiguous().view(torch.int32)
    rows = whole.shape[-2]
    columns = whole.new_zeros(*whole.shape[:-2], whole.shape[-1], rows + -rows % ALIGNED_ROWS)
    columns[..., :rows] = whole.transpose(-1, -2)
    return columns.transpose(-1, -2)[..., :rows, :]


def rows_of_blocks(scale: Tensor, rows: int) -> Tensor:
    """One scale a row from one a block of 32 rows: [⌈R / 32⌉, G] → [R, G]."""
    return scale.repeat_interleave(32, dim=-2)[..., :rows, :]


def empty_packed(rows: int, columns: int, device: torch.device) -> Tensor:
    """Room for the packed scales [R, P] of `columns` numbers a row."""
    padded = rows + -rows % ALIGNED_ROWS
    return torch.empty(columns // 32 // PACK, padded, dtype=torch.int32, device=device).t()[:rows]
