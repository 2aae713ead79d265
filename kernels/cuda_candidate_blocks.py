"""The blocks of 8 entries with the best scores of every row on Hopper (CUDA C++, GPU only): stable, by ascending number.

A block is as good as its best visible entry; the newest visible entry's block is always among them.
"""

from deepinfer.kernels import general_candidates
from deepinfer.kernels.cuda_top_entries import BLOCK, LONGEST, launch_choice
from torch import Tensor


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, out_TC: Tensor, block: int = BLOCK) -> Tensor:
    """The C best blocks of the first visible[t] scores of row t into out [T, C] int32; -1 fills up the end."""
    assert block == BLOCK, (
        f"candidate_blocks on Hopper was asked for blocks of {block}; it has blocks of {BLOCK}: general_candidates"
    )
    if scores_TJ.shape[1] > LONGEST:
        return general_candidates.candidate_blocks(scores_TJ, visible_T, out_TC)
    launch_choice(scores_TJ, visible_T, None, out_TC, BLOCK)
    return out_TC
