"""Places of the caches by row number: of chosen entries in the blocks' stores, of waiting tokens in the tails.

Legend: T rows · S sequences · B blocks of a sequence · E entries chosen · M rows written · C columns of a product · [A, S, X]
blocks of tails, places of one, numbers of a place.
"""

import torch
from torch import Tensor


def entry_rows(entry_TE: Tensor, tables_SB: Tensor, sequence_T: Tensor, per_block: int) -> Tensor:
    """Row numbers int32 [T, E] of a sequence's entries in the blocks' stores; -1 stays."""
    block_TE = tables_SB[sequence_T.unsqueeze(1), entry_TE.clamp(min=0) // per_block]
    return torch.where(entry_TE >= 0, block_TE * per_block + entry_TE % per_block, -1)


def write_tails(tail_ASX: Tensor, raw_TC: Tensor, rows_M: Tensor, places_M: Tensor) -> None:
    """Values and gates of rows `rows_M` to places `places_M` of the tails: the first X columns of `raw`."""
    slots = tail_ASX.shape[1]
    tail_ASX[places_M // slots, places_M % slots] = raw_TC[rows_M, : tail_ASX.shape[2]].to(tail_ASX.dtype)
