"""DeepSelect behind our top-k: the best entries of every row, on Blackwell.

Written against tokenspeed-deepselect 1.0.0.post20260910; not run here. Its interface does not say which of several equal scores
it keeps; our twin keeps the lowest entries.

Legend: T rows · J entries · N chosen entries.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.ops.deepseek_packages import package

MISSING = -1


def top_entries(scores_TJ: Tensor, visible_T: Tensor, out_TN: Tensor) -> Tensor:
    """The N best of the first visible[t] scores into out int32 [T, N], ascending; -1 fills up the end."""
    assert scores_TJ.dtype in (torch.bfloat16, torch.float32), "scores are bfloat16 or float32"
    assert out_TN.dtype == torch.int32 and out_TN.is_contiguous(), "entry numbers are int32, contiguous"
    select = package("deep_select")
    select.topk(
        _aligned(scores_TJ, select.get_stride_requirement()[0]),
        out_TN.shape[1],
        end=visible_T.int().clamp(max=scores_TJ.shape[1]),
        indices_type=torch.int32,
        sorted_index=True,
        output_idx=out_TN,
        idx_oob_fill_value=MISSING,
        return_value=False,
        abort_when_nan_found=False,
    )
    return out_TN


def _aligned(scores_TJ: Tensor, row_bytes: int) -> Tensor:
    """Rows that begin at multiples of `row_bytes`: themselves where they do, else a padded copy."""
    size = scores_TJ.element_size()
    if scores_TJ.stride(1) == 1 and scores_TJ.stride(0) * size % row_bytes == 0:
        return scores_TJ
    width = scores_TJ.shape[1]
    return F.pad(scores_TJ, (0, -width % (row_bytes // size)))[:, :width]
