"""RMS norm, and the activation quantiser in front of FP8 and FP4 products."""

from torch import Tensor

from deepinfer import formats
from deepinfer.ops.arithmetic import reciprocal_rms, working


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · weight over the last dim, in x's dtype."""
    wide = working(x)
    return (wide * reciprocal_rms(wide, eps) * working(weight_D)).to(x.dtype)


def quantise_activation(x_TK: Tensor) -> Tensor:
    """x rounded to E4M3 with one power-of-two scale per 32 columns; window keys are stored in the same format."""
    return formats.fake_fp8_rows(x_TK)
