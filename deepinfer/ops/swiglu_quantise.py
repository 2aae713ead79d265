"""An expert's activation and the quantiser in front of its second product.

Legend: P rows · J = 2 I gate and up columns.
"""

from torch import Tensor

from deepinfer.ops.experts import swiglu
from deepinfer.ops.norm import quantise_activation


def swiglu_quantise(h_PJ: Tensor, weight_P: Tensor | None, limit: float, used_1: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight [P, I] on the FP8 grid. Rows from `used` on mean nothing."""
    return quantise_activation(swiglu(h_PJ, weight_P, limit))
