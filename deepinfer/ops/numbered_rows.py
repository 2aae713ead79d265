"""Cache rows by number: row number i of a store [A, B, R] lies in block i // B, at i % B; a negative number is no row."""

import torch
from torch import Tensor

from deepinfer.ops.rows import RowKind, read_rows, write_rows


def store_numbered(kind: RowKind, store_ABR: Tensor, rows_T: Tensor, x_TK: Tensor) -> None:
    """Pack and store x's rows where their number is not negative. No two may share a place."""
    kept = rows_T >= 0
    rows = rows_T[kept].long()
    write_rows(kind, store_ABR, rows // store_ABR.shape[1], rows % store_ABR.shape[1], x_TK[kept])


def expand_rows(kind: RowKind, store_ABR: Tensor, rows_N: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The numbers [N, K] of numbered rows, exactly; zeros where the number is negative."""
    per_block = store_ABR.shape[1]
    outer_N = torch.where(rows_N < 0, -1, rows_N.long() // per_block)
    return read_rows(kind, store_ABR, outer_N, rows_N.long() % per_block, dtype)
