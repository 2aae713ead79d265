"""Cache rows: packed into and read back from strided storage, a whole row at a time.

A store is a view [A, B, R]: A blocks or sequence slots, B rows in each, R bytes (packed kinds) or numbers ("plain") a row.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from deepinfer import formats

RowKind = Literal["window", "main", "index", "plain"]

_PACK: dict[str, Callable[[Tensor], Tensor]] = {
    "window": formats.pack_window,
    "main": formats.pack_main,
    "index": formats.pack_index,
}
_UNPACK: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "window": formats.unpack_window,
    "main": formats.unpack_main,
    "index": formats.unpack_index,
}


def write_rows(kind: RowKind, store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor) -> None:
    """Store x's rows at (outer, inner). No two rows may share a place."""
    store_ABR[outer_T, inner_T] = x_TK if kind == "plain" else _PACK[kind](x_TK)


def read_rows(kind: RowKind, store_ABR: Tensor, outer: Tensor, inner: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows at (outer, inner) as numbers […, K] of `dtype`. Where outer is negative: zeros, whatever the store holds there."""
    rows = store_ABR[outer.clamp(min=0), inner]
    values = rows if kind == "plain" else _UNPACK[kind](rows, dtype)
    return values.masked_fill((outer < 0).unsqueeze(-1), 0.0)
