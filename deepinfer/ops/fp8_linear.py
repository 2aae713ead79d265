"""Products with dense FP8 weights as the release stores them: E4M3 codes, one power of two per 32 × 32 block.

"Exact": the weight's numbers and activations already rounded to the FP8 grid are both bfloat16 numbers, so nothing is lost
before the products; sums are float32 on a device and at least float32 here.

Legend: T rows · K inputs · N outputs · G groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.formats import dequantise_fp8_blocks
from deepinfer.formats.scales import working_dtype
from deepinfer.ops.linear import grouped_linear, linear


@dataclass(frozen=True)
class Fp8Weight:
    """Codes float8_e4m3fn [N, K] and E8M0 bytes uint8 [N / 32, K / 32]; of G groups: N = G · (outputs of one group)."""

    codes_NK: Tensor
    scale: Tensor

    def numbers(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], exact in bfloat16, float32 and float64."""
        return dequantise_fp8_blocks(self.codes_NK, self.scale, dtype)


def fp8_linear(x_TK: Tensor, weight: Fp8Weight, *, invariant: bool = True) -> Tensor:
    """x · weightᵀ [T, N] in x's dtype; x on the FP8 grid (`quantise_activation`), in bfloat16 summed in float32.

    `invariant=False` lets a kernel sum in an order that depends on the number of rows; the twin never does.
    """
    dtype = working_dtype(x_TK.dtype)
    return linear(x_TK.to(dtype), weight.numbers(dtype)).to(x_TK.dtype)


def fp8_grouped_linear(x_TGK: Tensor, weight: Fp8Weight, *, invariant: bool = True) -> Tensor:
    """Block-diagonal product [T, N] in x's dtype: group g of x meets rows g · N / G … of the weight. Any x.

    `invariant`: see `fp8_linear`.
    """
    dtype = working_dtype(x_TGK.dtype)
    weight_GNK = weight.numbers(dtype).unflatten(0, (x_TGK.shape[1], -1))
    return grouped_linear(x_TGK.to(dtype), weight_GNK).to(x_TGK.dtype)
