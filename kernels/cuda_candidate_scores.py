"""Index scores of candidate entries only, on Hopper (CUDA C++, GPU only): keys are gathered by blocks of 8, scores lie packed.

Legend as in `cuda_index_scores`, and C candidate blocks of a row.
"""

import torch
from deepinfer.kernels.cuda_index_scores import check_scores, launch_scores
from torch import Tensor

BLOCK = 8


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
    """Scores into out [T, 8·C]: place 8·c + e is entry 8·blocks[t, c] + e, -inf where that is not visible.

    Blocks ascend, -1 at the end. Places from min(visible[t], 8·C) on may be left alone: no candidate lies there.
    Bits are those of `paged_index_scores`.
    """
    check_scores(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, out_TJ)
    assert blocks_TC.dtype == torch.int32 and blocks_TC.is_contiguous(), "block numbers are int32 and contiguous"
    assert len(blocks_TC) == len(q_TIK), (
        f"{len(q_TIK)} rows of q and {len(blocks_TC)} lists of candidate blocks: one a row"
    )
    assert out_TJ.shape[1] == BLOCK * blocks_TC.shape[1], "8 scores a block"
    launch_scores(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, blocks_TC, out_TJ, 1)
    return out_TJ
