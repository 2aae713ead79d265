"""The lightning indexer: scores of compressed entries, the best of them, and candidate blocks.

A score is summed dim by dim and head by head in order, so score(t, j) depends on query t and key j alone. Choices are made by
comparison; equal scores go to the lowest index; -inf is never chosen.

Legend: T rows · I index heads · K index dim · S sequences · B blocks of a sequence · J entries · C candidate blocks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.ops.arithmetic import working
from deepinfer.ops.rows import RowKind, read_rows

BLOCK_NUMBERS = 1 << 22  # numbers in a block of partial sums: 16 MiB of float32


def index_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    kind: RowKind,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
) -> Tensor:
    """[T, J]: Σ_i weight_i · relu(q_i · key_j), -inf from `visible` on. J is the largest number of visible entries.

    `store_ABR` holds the keys; entry j of sequence s is row j mod B' of block tables[s, j // B'], B' = rows a block.
    Rows of one sequence are adjacent.
    """
    q_TIK, weight_TI = working(q_TIK), working(weight_TI)
    longest = int(visible_T.max())
    scores_TJ = q_TIK.new_full((len(q_TIK), longest), -torch.inf)
    owners, counts = torch.unique_consecutive(sequence_T, return_counts=True)
    single = (counts == 1).repeat_interleave(counts).nonzero().squeeze(1)
    if len(single):
        keys_TJK = _keys(kind, store_ABR, tables_SB[sequence_T[single]], int(visible_T[single].max()), q_TIK.dtype)
        scores_TJ[single, : keys_TJK.shape[1]] = _scores(q_TIK[single], weight_TI[single], keys_TJK)
    ends = counts.cumsum(0)
    for owner, count, end in zip(owners.tolist(), counts.tolist(), ends.tolist()):
        if count > 1:
            rows = slice(end - count, end)
            keys_1JK = _keys(kind, store_ABR, tables_SB[owner : owner + 1], int(visible_T[rows].max()), q_TIK.dtype)
            step = max(1, BLOCK_NUMBERS // max(1, q_TIK.shape[1] * keys_1JK.shape[1]))
            for first in range(rows.start, end, step):
                block = slice(first, min(first + step, end))
                scores_TJ[block, : keys_1JK.shape[1]] = _scores(q_TIK[block], weight_TI[block], keys_1JK)
    hidden_TJ = torch.arange(longest) >= visible_T.unsqueeze(1)
    return scores_TJ.masked_fill_(hidden_TJ, -torch.inf)


def best_entries(scores_TJ: Tensor, count: int) -> Tensor:
    """The `count` best entries of every row by ascending index, int64 [T, count]; -1 fills up the end."""
    entries = scores_TJ.shape[1]
    order = scores_TJ.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    chosen = torch.where(scores_TJ.gather(1, order) > -torch.inf, order, entries).sort(dim=-1).values
    return F.pad(chosen.masked_fill_(chosen == entries, -1), (0, count - chosen.shape[1]), value=-1)


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, block_size: int, count: int) -> Tensor:
    """bool [T, C]: the `count` blocks with the best entries, the newest visible entry's block always among them."""
    padded_TJ = F.pad(scores_TJ, (0, -scores_TJ.shape[1] % block_size), value=-torch.inf)
    blocks_TC = padded_TJ.unflatten(1, (-1, block_size)).amax(-1)
    newest_TC = torch.arange(blocks_TC.shape[1]) == ((visible_T - 1) // block_size).unsqueeze(1)
    blocks_TC = blocks_TC.masked_fill(newest_TC & (visible_T > 0).unsqueeze(1), torch.inf)
    order = blocks_TC.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(newest_TC).scatter_(1, order, blocks_TC.gather(1, order) > -torch.inf)


def keep_candidates(scores_TJ: Tensor, candidates_TC: Tensor, block_size: int) -> Tensor:
    """Scores with everything outside the candidate blocks at -inf."""
    allowed_TJ = candidates_TC.repeat_interleave(block_size, dim=1)[:, : scores_TJ.shape[1]]
    return scores_TJ.masked_fill(~allowed_TJ, -torch.inf)


def _keys(kind: RowKind, store_ABR: Tensor, tables_SB: Tensor, entries: int, dtype: torch.dtype) -> Tensor:
    entry_J = torch.arange(entries)
    per_block = store_ABR.shape[1]
    outer_SJ = tables_SB[:, entry_J // per_block]
    return working(read_rows(kind, store_ABR, outer_SJ, (entry_J % per_block).expand_as(outer_SJ), dtype))


def _scores(q_TIK: Tensor, weight_TI: Tensor, keys_SJK: Tensor) -> Tensor:
    """[T, J]; keys belong to the row (S = T) or to all rows (S = 1)."""
    dots_TIJ = q_TIK.new_zeros(*q_TIK.shape[:2], keys_SJK.shape[1])
    for k in range(q_TIK.shape[2]):
        dots_TIJ += q_TIK[:, :, k, None] * keys_SJK[:, None, :, k]
    dots_TIJ.clamp_(min=0)
    total_TJ = dots_TIJ[:, 0] * weight_TI[:, 0, None]
    for head in range(1, q_TIK.shape[1]):
        total_TJ = total_TJ + dots_TIJ[:, head] * weight_TI[:, head, None]
    return total_TJ
