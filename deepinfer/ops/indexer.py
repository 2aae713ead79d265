"""The lightning indexer as a device runs it: paged keys, outputs of fixed size, choices as entry numbers.

The twins of the kernels, composed of `ops.index`; results are written into `out`, so that calls can be captured in a graph.
NaN counts as -inf: it is never chosen.

Legend: T rows · I index heads · K index dim · A cache blocks · B rows a block · R bytes a row · S sequences · J entries ·
N chosen entries · C candidate blocks of E entries · F rotated pairs.
"""

import torch
from torch import Tensor

from deepinfer.formats import fake_index
from deepinfer.ops.index import best_entries, index_scores
from deepinfer.ops.index import candidate_blocks as candidate_mask
from deepinfer.ops.rotate import rotate

BLOCK = 8  # entries of a candidate block, of the release


def paged_index_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    out_TJ: Tensor,
    rows_together: int = 1,
) -> Tensor:
    """Scores of every visible entry into out [T, J], -inf behind them. A kernel may leave alone what is not visible.

    Entry j of sequence s is row j mod B of block tables[s, j // B]. Rows of one sequence are adjacent;
    `rows_together` of them may share a kernel's reads of keys, with the same bits.
    """
    out_TJ.fill_(-torch.inf)
    if len(visible_T) and int(visible_T.max()) > 0:
        with out_TJ.device:
            scores_TJ = index_scores(q_TIK, weight_TI, "index", store_ABR, tables_SB, sequence_T, visible_T)
        out_TJ[:, : scores_TJ.shape[1]] = scores_TJ
    return out_TJ


def candidate_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    blocks_TC: Tensor,
    out_TJ: Tensor,
) -> Tensor:
    """Scores of candidate entries, packed: out [T, E·C], place E·c + e is entry E·blocks[t, c] + e, -inf where not visible.

    Blocks ascend, -1 at the end. A kernel may leave alone the places from min(visible[t], E·C) on: no candidate lies there.
    """
    width = tables_SB.shape[1] * store_ABR.shape[1]
    all_TJ = paged_index_scores(
        q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, out_TJ.new_empty(len(q_TIK), width)
    )
    entry_TJ = candidate_entries(blocks_TC, out_TJ.shape[1] // blocks_TC.shape[1])
    shown_TJ = (entry_TJ >= 0) & (entry_TJ < visible_T.unsqueeze(1))
    return out_TJ.copy_(torch.where(shown_TJ, all_TJ.gather(1, entry_TJ.clamp(0, width - 1)), -torch.inf))


def candidate_entries(blocks_TC: Tensor, block: int = BLOCK) -> Tensor:
    """Entry numbers int64 [T, E·C] of the places of packed candidate scores; negative where there is no block."""
    place_E = torch.arange(block, device=blocks_TC.device)
    return (blocks_TC.long().unsqueeze(-1) * block + place_E).flatten(1)


def top_entries(scores_TJ: Tensor, visible_T: Tensor, out_TN: Tensor, blocks_TC: Tensor | None = None) -> Tensor:
    """The N best of the first visible[t] scores into out int32 [T, N], ascending; -1 fills up the end.

    With `blocks`, scores are packed candidates and their entry numbers are written.
    """
    chosen_TN = best_entries(visible_scores(scores_TJ, visible_T), out_TN.shape[1])
    if blocks_TC is not None:
        entry_TN = candidate_entries(blocks_TC, scores_TJ.shape[1] // blocks_TC.shape[1]).gather(
            1, chosen_TN.clamp(min=0)
        )
        chosen_TN = torch.where(chosen_TN < 0, -1, entry_TN)
    return out_TN.copy_(chosen_TN)


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, out_TC: Tensor, block: int = BLOCK) -> Tensor:
    """The C blocks of `block` entries with the best scores, the newest visible entry's always among them: out int32 [T, C],
    ascending; -1 fills up the end."""
    with scores_TJ.device:
        chosen = candidate_mask(visible_scores(scores_TJ, visible_T), visible_T, block, out_TC.shape[1])
    return out_TC.copy_(best_entries(torch.where(chosen, 0.0, -torch.inf), out_TC.shape[1]))


def rotate_quantise_index_q(q_TIK: Tensor, rope_T2F: Tensor, out_TIK: Tensor | None = None) -> Tensor:
    """q [T, I, K] with its last 2F dims turned by rope [T, 2, F] (cosines, sines), then rounded to the FP4 index grid."""
    turned_TIK = fake_index(rotate(q_TIK, rope_T2F))
    return turned_TIK if out_TIK is None else out_TIK.copy_(turned_TIK)


def visible_scores(scores_TJ: Tensor, visible_T: Tensor) -> Tensor:
    """Scores [T, J] with -inf behind the first visible[t], and for NaN."""
    entry_J = torch.arange(scores_TJ.shape[1], device=scores_TJ.device)
    hidden_TJ = (entry_J >= visible_T.unsqueeze(1)) | scores_TJ.isnan()
    return scores_TJ.masked_fill(hidden_TJ, -torch.inf)
