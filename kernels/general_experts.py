"""MXFP4 experts of any widths as stored: the Triton product, and the activation behind the first of the two.

Legend: T tokens · P sorted rows · E1 experts + 1 · K inputs · I inner.
"""

from deepinfer.kernels.triton_fp4_grouped_linear import fp4_grouped_linear
from deepinfer.kernels.triton_swiglu_quantise import swiglu_quantise
from torch import Tensor

from deepinfer.ops.fp4_experts import SWIGLU_LIMIT, Fp4Experts


def prepare_experts(weight: Fp4Experts) -> Fp4Experts:
    """As stored, contiguous."""
    return Fp4Experts(weight.codes_ENB.contiguous(), weight.scale_ENG.contiguous())


def fp4_experts_up(
    x_TK: Tensor,
    rows_P: Tensor | None,
    starts_E1: Tensor,
    weights_P: Tensor,
    w13: Fp4Experts,
    limit: float = SWIGLU_LIMIT,
) -> Tensor:
    """The input of w2, bfloat16 [P, I] on the FP8 grid. Rows from starts[E] on mean nothing; no count is read on the host."""
    return swiglu_quantise(fp4_grouped_linear(x_TK, rows_P, starts_E1, w13), weights_P, limit)
