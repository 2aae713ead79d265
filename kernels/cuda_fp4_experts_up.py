"""The first half of MXFP4 experts on Hopper: w13, SwiGLU, routing weight and FP8 grid in one launch. GPU only.

Legend: T tokens · P sorted rows · E experts · E1 E + 1 · K inputs · I inner.
"""

import torch
from deepinfer.kernels.cuda_fp4_grouped_linear import check_rows, launch_fp4
from deepinfer.kernels.fp4_expert_tiles import TiledFp4Experts
from torch import Tensor

from deepinfer.ops.fp4_experts import SWIGLU_LIMIT


def fp4_experts_up(
    x_TK: Tensor,
    rows_P: Tensor | None,
    starts_E1: Tensor,
    weights_P: Tensor,
    w13: TiledFp4Experts,
    limit: float = SWIGLU_LIMIT,
) -> Tensor:
    """The input of w2, bfloat16 [P, I] on the FP8 grid; `w13` tiled with paired=True. Gate and up are clamped at `limit`.

    Rows from starts[E] on are not written; no count is read on the host.
    """
    check_rows(x_TK, rows_P, starts_E1, w13, paired=True)
    num_rows = (x_TK if rows_P is None else rows_P).shape[0]
    assert weights_P.dtype == torch.float32 and weights_P.is_contiguous() and weights_P.shape == (num_rows,), (
        f"routing weights are {weights_P.dtype} {tuple(weights_P.shape)}; every sorted row has one: give contiguous float32 "
        f"[{num_rows}]"
    )
    act_PI = x_TK.new_empty(num_rows, w13.shape[1] // 2)
    if act_PI.shape[0]:
        launch_fp4(x_TK, rows_P, starts_E1, w13, act_PI, weights_P, limit)
    return act_PI
