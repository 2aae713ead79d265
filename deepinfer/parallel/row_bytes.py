"""Rows of numbers as the bytes that travel between ranks.

Legend: T rows · D numbers of a row · B bytes of a row.
"""

import torch
from torch import Tensor

from deepinfer.ops import Ops


class RowBytes:
    """`packed`: E4M3 codes and a scale per 32 numbers, which is all there is of rows that were rounded to that format before;
    otherwise the numbers themselves. Either way rows that arrive have the bits of those that were sent."""

    def __init__(self, ops: Ops, *, packed: bool) -> None:
        self.ops, self.packed = ops, packed

    def pack(self, x_TD: Tensor) -> Tensor:
        """uint8 [T, B]."""
        if not self.packed:
            return as_bytes(x_TD)
        rows, width = x_TD.shape
        store_1TB = torch.empty(1, rows, width + width // 32, dtype=torch.uint8)
        if rows:
            self.ops.write_rows("window", store_1TB, torch.zeros(rows, dtype=torch.int64), torch.arange(rows), x_TD)
        return store_1TB[0]

    def unpack(self, rows_MB: Tensor, dtype: torch.dtype, at_T: Tensor) -> Tensor:
        """Rows `at_T` of what `pack` made, as numbers [T, D] of `dtype`."""
        if not self.packed:
            return from_bytes(rows_MB[at_T], dtype)
        if not len(at_T):
            return torch.empty(0, rows_MB.shape[1] // 33 * 32, dtype=dtype)
        return self.ops.read_rows("window", rows_MB.unsqueeze(0), torch.zeros_like(at_T), at_T, dtype)

    def num_bytes(self, width: int, dtype: torch.dtype) -> int:
        """Of a row of `width` numbers."""
        return width + width // 32 if self.packed else width * dtype.itemsize


def as_bytes(x_NK: Tensor) -> Tensor:
    """uint8 [N, B]: what every backend of collectives carries."""
    rows, width = x_NK.shape
    return x_NK.reshape(-1).view(torch.uint8).view(rows, width * x_NK.itemsize)


def from_bytes(rows_NB: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `as_bytes` was given."""
    rows, width = rows_NB.shape
    flat = rows_NB.reshape(-1)
    if flat.storage_offset() % dtype.itemsize:  # a part of a single row: numbers begin on borders of their size
        flat = flat.clone()
    return flat.view(dtype).view(rows, width // dtype.itemsize)
