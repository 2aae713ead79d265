"""LOSSY: dense FP8 products with weights re-quantised to 128 × 128 blocks and activations to groups of 128. Never the default.

The release's weights have one power of two per 32 × 32 block. Under one power per 128 × 128 block, and per row and 128 columns,
numbers 2^-14 and more below the largest of their block lose bits; and Hopper's FP8 matrix units sum with fewer bits than
float32. What is gained is their speed.

Legend: T rows · K inputs · N outputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.formats import dequantise_fp8_rows, quantise_fp8_rows
from deepinfer.formats.fp8 import FP8_FLOOR
from deepinfer.formats.scales import E4M3_MAX, decode_e8m0, power_of_two_scale, working_dtype
from deepinfer.formats.tables import decode_e4m3
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.linear import linear

BLOCK = 128


@dataclass(frozen=True)
class Fp8Weight128:
    """Codes float8_e4m3fn [N, K] and E8M0 bytes uint8 [N / 128, K / 128]."""

    codes_NK: Tensor
    scale: Tensor

    def numbers(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], exact in float32 and float64."""
        scale = decode_e8m0(self.scale, dtype).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return decode_e4m3(self.codes_NK, dtype) * scale


def requantise_128(weight: Fp8Weight) -> Fp8Weight128:
    """LOSSY: the weight in 128 × 128 blocks; N and K are multiples of 128."""
    blocks = weight.numbers().unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = power_of_two_scale(blocks.abs().amax((1, 3)).clamp(min=FP8_FLOOR), E4M3_MAX)
    codes = (blocks / decode_e8m0(scale, torch.float32)[:, None, :, None]).to(torch.float8_e4m3fn)
    return Fp8Weight128(codes.view(weight.codes_NK.shape), scale)


def quantise_rows_128(x_TK: Tensor) -> tuple[Tensor, Tensor]:
    """LOSSY: codes float8_e4m3fn [T, K] and E8M0 bytes uint8 [T, K / 128]."""
    return quantise_fp8_rows(x_TK, BLOCK)


def fp8_linear_128(
    codes_TK: Tensor, scale: Tensor, weight: Fp8Weight128, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """The product [T, N] of what `quantise_rows_128` and `requantise_128` have left; as `dtype`, summed in float32 at least."""
    working = working_dtype(dtype)
    return linear(dequantise_fp8_rows(codes_TK, scale, working), weight.numbers(working)).to(dtype)
