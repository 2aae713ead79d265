"""The blocks of 8 entries with the best scores of every row on Hopper (CUDA C++, GPU only): stable, by ascending number.

A block is as good as its best visible entry; the newest visible entry's block is always among them.
"""

from deepinfer.kernels.cuda_top_entries import BLOCK, launch_choice
from torch import Tensor


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, out_TC: Tensor) -> Tensor:
    """The C best blocks of the first visible[t] scores of row t into out [T, C] int32; -1 fills up the end."""
    launch_choice(scores_TJ, visible_T, None, out_TC, BLOCK)
    return out_TC
