"""RMS norm and the FP8 quantiser behind it, in one pass.

Legend: T rows · D columns · G = D / 32 groups.
"""

from typing import NamedTuple

from torch import Tensor

from deepinfer import formats
from deepinfer.ops.norm import rms_norm


class Quantised(NamedTuple):
    """The same rows in up to three forms; what was not asked for is None.

    `normed_TD` and `grid_TD` have the input's dtype; `grid_TD` holds numbers e4m3 · 2^e. `codes_TD` (float8_e4m3fn) and
    `powers_TG` (E8M0, uint8) say the same as `grid_TD`.
    """

    normed_TD: Tensor | None
    grid_TD: Tensor | None
    codes_TD: Tensor | None
    powers_TG: Tensor | None


def norm_quantise(
    x_TD: Tensor, weight_D: Tensor, eps: float, *, normed: bool = False, grid: bool = True, codes: bool = False
) -> Quantised:
    """rms_norm(x), as it is and quantised."""
    normed_TD = rms_norm(x_TD, weight_D, eps)
    quantised = quantise(normed_TD, grid=grid, codes=codes)
    return Quantised(normed_TD if normed else None, quantised.grid_TD, quantised.codes_TD, quantised.powers_TG)


def quantise(x_TD: Tensor, *, grid: bool = True, codes: bool = False) -> Quantised:
    """x in E4M3 with one power-of-two scale per row and 32 columns."""
    codes_TD, powers_TG = formats.quantise_fp8_rows(x_TD)
    return Quantised(
        normed_TD=None,
        grid_TD=formats.dequantise_fp8_rows(codes_TD, powers_TG, x_TD.dtype) if grid else None,
        codes_TD=codes_TD if codes else None,
        powers_TG=powers_TG if codes else None,
    )
