"""Matrix products whose rows do not depend on how many rows there are.

A BLAS picks its kernel by the row count, so one row's bits change with the batch. Here every product has exactly TILE rows,
zero-padded at the end, in a loop. Every width from one row to a long prompt uses the same tile.

Legend: T rows · K inputs · N outputs · G groups.
"""

import torch
from torch import Tensor

TILE = 8  # rows; measured against 16 and 32: one to eight decode rows are the common case on a CPU


def linear(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """x · weightᵀ [T, N]; both of one dtype."""
    rows, turned_KN = x_TK.shape[0], weight_NK.t()
    x_TK = x_TK.contiguous()
    if rows == TILE:
        return torch.mm(x_TK, turned_KN)
    if rows < TILE:
        return torch.mm(_padded(x_TK), turned_KN)[:rows]
    out_TN = x_TK.new_empty(rows, weight_NK.shape[0])
    whole = rows // TILE * TILE
    for x_tile, out_tile in zip(tiles(x_TK[:whole]), tiles(out_TN[:whole])):
        torch.mm(x_tile, turned_KN, out=out_tile)
    if whole < rows:
        out_TN[whole:] = torch.mm(_padded(x_TK[whole:]), turned_KN)[: rows - whole]
    return out_TN


def grouped_linear(x_TGK: Tensor, weight_GNK: Tensor) -> Tensor:
    """Block-diagonal product [T, G · N]: group g of the input meets only weight g."""
    return torch.cat([linear(x_TGK[:, g], weight) for g, weight in enumerate(weight_GNK)], dim=-1)


def tiles(x_TK: Tensor) -> tuple[Tensor, ...]:
    """Views of a whole number of tiles."""
    return x_TK.view(-1, TILE, x_TK.shape[1]).unbind(0)


def _padded(x_TK: Tensor) -> Tensor:
    padded = x_TK.new_zeros(TILE, x_TK.shape[1])
    padded[: x_TK.shape[0]] = x_TK
    return padded
