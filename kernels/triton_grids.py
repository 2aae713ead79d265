"""Pairs of bfloat16 in an int32: their greatest magnitude, and rounding onto the grid of a format with powers of two.

One instruction of a device serves both numbers of a pair; under the interpreter the same is done one by one.
"""

import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import PLAIN
from deepinfer.kernels.triton_formats import (
    e2m1_codes,
    e2m1_values,
    e4m3_codes,
    e4m3_values,
    high_half,
    inverse_power_value,
    low_half,
    pair_of_bf16,
    power_value,
)


@triton.jit
def _greater_halves(a, b):
    """The greater of the low halves beside the greater of the high halves, as unsigned numbers."""
    if PLAIN:
        low, high = tl.maximum(a & 0xFFFF, b & 0xFFFF), tl.maximum((a >> 16) & 0xFFFF, (b >> 16) & 0xFFFF)
        out = low | (high << 16)
    else:
        out = tl.inline_asm_elementwise("max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)
    return out


@triton.jit
def greatest_of_pairs(pair, axis: tl.constexpr):
    """The greatest magnitude of bfloat16 along an axis of pairs, as the bits of a float32.

    Magnitudes are taken as integers, so that infinity is greater than all numbers and NaN greater still.
    """
    both = tl.reduce(pair & 0x7FFF7FFF, axis, _greater_halves)
    return tl.maximum(both & 0x7FFF0000, both << 16)


@triton.jit
def _pair_on_grid(pair, power, LEAST: tl.constexpr, STEP: tl.constexpr):
    """On a device: divide by the power, add and take away the number whose last place is the format's there, multiply again.

    LEAST is the format's least normal number as a pair of bfloat16, STEP the exponent from there to the number added. All but
    the addition is exact; magnitudes are within the format's range.
    """
    scale, inverse = power_value(power), inverse_power_value(power)
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 number, place, sign;
        mul.rn.bf16x2 number, $1, $3;
        and.b32 sign, number, 0x80008000;
        and.b32 place, number, 0x7f807f80;
        max.u16x2 place, place, $4;
        add.u32 place, place, $5;
        or.b32 place, place, sign;
        add.rn.bf16x2 number, number, place;
        sub.rn.bf16x2 number, number, place;
        mul.rn.bf16x2 number, number, $2;
        lop3.b32 $0, number, sign, 0x7fff7fff, 0xec;
        }""",
        "=r,r,r,r,r,r", [pair, pair_of_bf16(scale, scale), pair_of_bf16(inverse, inverse), LEAST, STEP],
        dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def pair_on_e4m3_grid(pair, power):
    """Pairs of bfloat16 (int32) rounded to E4M3 · 2^(power - 127), to nearest even; NaN where the power is 255.

    For a power that keeps the quotients within ±448.
    """
    if PLAIN:
        scale, inverse = power_value(power), inverse_power_value(power)
        even = e4m3_values(e4m3_codes(low_half(pair) * inverse)) * scale
        out = pair_of_bf16(even, e4m3_values(e4m3_codes(high_half(pair) * inverse)) * scale)
    else:
        out = _pair_on_grid(pair, power, 0x3C803C80, 0x02000200)
    return out


@triton.jit
def pair_on_e2m1_grid(pair, power):
    """The same with E2M1, for a power that keeps the quotients within ±6."""
    if PLAIN:
        scale, inverse = power_value(power), inverse_power_value(power)
        even = e2m1_values(e2m1_codes(low_half(pair) * inverse)) * scale
        out = pair_of_bf16(even, e2m1_values(e2m1_codes(high_half(pair) * inverse)) * scale)
    else:
        out = _pair_on_grid(pair, power, 0x3F803F80, 0x03000300)
    return out
