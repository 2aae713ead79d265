"""Rounding and packing of the number formats, for Triton kernels: the arithmetic of `deepinfer.formats` on register tiles.

A device converts with its own instructions (to nearest even, saturating, as checked against torch); under the interpreter,
whose conversions cut off instead, the same is done by integers.
"""

import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import PLAIN

NAN_BITS = tl.constexpr(0x7FC00000)
INFINITE_BITS = tl.constexpr(0x7F800000)
FP8_FLOOR_BITS = tl.constexpr(0x38D1B717)  # 1e-4
FP8_CARRY = tl.constexpr((1 << 23) - 1 - (3 << 21))  # 448 = 1.75 · 2^8; see formats.power_of_two_scale
FP4_FLOOR_BITS = tl.constexpr(0x01C00000)  # 6 · 2^-126
FP4_CARRY = tl.constexpr((1 << 23) - 1 - (1 << 22))  # 6 = 1.5 · 2^2
E2M1_UNIT = tl.constexpr(2.0**-14)  # see pair_of_e2m1


@triton.jit
def as_bf16(x):
    """float32 to bfloat16, to nearest even."""
    if PLAIN:
        bits = x.to(tl.int32, bitcast=True)
        bits = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), NAN_BITS)
        out = ((bits >> 16) & 0xFFFF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        out = x.to(tl.bfloat16)
    return out


@triton.jit
def pair_of_bf16(even, odd):
    """Two float32 as one int32 of two bfloat16, `even` in the low half."""
    if PLAIN:
        low = as_bf16(even).to(tl.uint16, bitcast=True).to(tl.int32)
        out = low | (as_bf16(odd).to(tl.uint16, bitcast=True).to(tl.int32) << 16)
    else:
        out = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=tl.int32, is_pure=True, pack=1
        )
    return out


@triton.jit
def low_half(pair):
    """The even number of a pair of bfloat16, float32."""
    return (pair << 16).to(tl.float32, bitcast=True)


@triton.jit
def high_half(pair):
    """The odd number of a pair of bfloat16, float32."""
    return (pair & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def fp8_power(amax_bits):
    """E8M0 byte (int32) of a group of E4M3 numbers with this greatest magnitude."""
    power = ((tl.maximum(amax_bits, FP8_FLOOR_BITS) + FP8_CARRY) >> 23) - 8
    return tl.where(amax_bits < INFINITE_BITS, power, 255)


@triton.jit
def fp4_power(amax_bits):
    """E8M0 byte (int32) of a group of E2M1 numbers with this greatest magnitude."""
    power = ((tl.maximum(amax_bits, FP4_FLOOR_BITS) + FP4_CARRY) >> 23) - 2
    return tl.where(amax_bits < INFINITE_BITS, power, 255)


@triton.jit
def power_value(power):
    """2^(power - 127) for a byte above 0; NaN for 255."""
    return tl.where(power == 255, NAN_BITS, power << 23).to(tl.float32, bitcast=True)


@triton.jit
def any_power_value(power):
    """2^(power - 127) for every byte, 0 too; NaN for 255."""
    return tl.where(power == 0, 0x00400000, tl.where(power == 255, NAN_BITS, power << 23)).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power_value(power):
    """2^(127 - power) for a byte below 254; NaN for 255."""
    return tl.where(power == 255, NAN_BITS, (254 - power) << 23).to(tl.float32, bitcast=True)


@triton.jit
def e4m3_codes(y):
    """float32 to E4M3 (uint8), to nearest even, saturating at 448; NaN stays NaN."""
    if PLAIN:
        bits = y.to(tl.int32, bitcast=True)
        magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x43E00000)
        small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        wide = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1) - (120 << 23)) >> 20
        code = tl.where(magnitude < (121 << 23), small, wide)
        out = (tl.where(y == y, code, 0x7F) | ((bits >> 24) & 0x80)).to(tl.uint8)
    else:
        out = y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return out


@triton.jit
def pair_of_e4m3(even, odd):
    """Two float32 as one int16 of two E4M3 codes, `even` in the low byte."""
    if PLAIN:
        out = (e4m3_codes(even).to(tl.int32) | (e4m3_codes(odd).to(tl.int32) << 8)).to(tl.int16)
    else:
        out = tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,f,f", [even, odd], dtype=tl.int16, is_pure=True, pack=1
        )
    return out


@triton.jit
def e4m3_values(codes):
    """E4M3 (uint8) to float32."""
    if PLAIN:
        wide = codes.to(tl.int32)
        value = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
        out = tl.where((wide & 0x7F) == 0x7F, float("nan"), tl.where(wide < 0x80, value, -value))
    else:
        out = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    return out


@triton.jit
def main_scale(amax_bits):
    """E4M3 code (uint8) of the scale of a group of main keys."""
    amax = tl.maximum(amax_bits, 0x3C400000).to(tl.float32, bitcast=True)  # 6 · 2^-9
    scale = tl.minimum(tidy_quotient(amax * 0.16666667163372040), 448.0)
    return tl.where(amax_bits < INFINITE_BITS, e4m3_codes(scale), 0x7F).to(tl.uint8)


@triton.jit
def tidy_quotient(y):
    """y without the last 11 bits of its mantissa.

    y is a bfloat16 times a rounded reciprocal, in place of its quotient by an E4M3 or by 6. Such quotients lie on a tie of the
    next rounding or at least a 256th part away from it, so this restores the ties and moves nothing over one.
    """
    return ((y.to(tl.int32, bitcast=True) + 0x400) & -0x800).to(tl.float32, bitcast=True)


@triton.jit
def e2m1_codes(y):
    """float32 to E2M1 (int32, 0 … 15), to nearest even, saturating at 6; NaN becomes 6."""
    bits = y.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x40C00000)
    small = (magnitude.to(tl.float32, bitcast=True) + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000
    wide = ((magnitude + 0x1FFFFF + ((magnitude >> 22) & 1)) >> 22) - 252
    return tl.where(magnitude < 0x3F800000, small, wide) | ((bits >> 28) & 8)


@triton.jit
def pair_of_e2m1(even, odd):
    """Two float32 as one byte (uint8) of two E2M1 codes, `even` in the low nibble. They come multiplied by E2M1_UNIT.

    They are quotients of bfloat16s, by a power of two or as `tidy_quotient` says. A device takes them through float16, whose 11
    bits likewise restore ties and move nothing over one. The unit puts E2M1's subnormal numbers at float16's, so that the code
    is what stands in the upper bits of a float16, rounded as an integer. Four bytes are made at once.
    """
    if PLAIN:
        low, high = e2m1_codes(tidy_quotient(even * 16384.0)), e2m1_codes(tidy_quotient(odd * 16384.0))
        out = (low | (high << 4)).to(tl.uint8)
    else:
        out = tl.inline_asm_elementwise(
            """{
            .reg .b32 six, a, b, c, d, place;
            mov.b32 six, 0x0e000e00;
            cvt.rn.f16x2.f32 a, $5, $1;
            cvt.rn.f16x2.f32 b, $6, $2;
            cvt.rn.f16x2.f32 c, $7, $3;
            cvt.rn.f16x2.f32 d, $8, $4;
            min.xorsign.abs.f16x2 a, a, six;
            min.xorsign.abs.f16x2 b, b, six;
            min.xorsign.abs.f16x2 c, c, six;
            min.xorsign.abs.f16x2 d, d, six;
            shr.u32 place, a, 9;
            and.b32 place, place, 0x00010001;
            add.u32 a, a, place;
            add.u32 a, a, 0x00ff00ff;
            shr.u32 place, b, 9;
            and.b32 place, place, 0x00010001;
            add.u32 b, b, place;
            add.u32 b, b, 0x00ff00ff;
            shr.u32 place, c, 9;
            and.b32 place, place, 0x00010001;
            add.u32 c, c, place;
            add.u32 c, c, 0x00ff00ff;
            shr.u32 place, d, 9;
            and.b32 place, place, 0x00010001;
            add.u32 d, d, place;
            add.u32 d, d, 0x00ff00ff;
            prmt.b32 a, a, b, 0x7531;
            prmt.b32 c, c, d, 0x7531;
            shr.u32 b, a, 4;
            shr.u32 a, a, 1;
            lop3.b32 a, a, b, 0x07070707, 0xe4;
            shr.u32 b, a, 4;
            lop3.b32 a, a, b, 0x0f0f0f0f, 0xe4;
            shr.u32 d, c, 4;
            shr.u32 c, c, 1;
            lop3.b32 c, c, d, 0x07070707, 0xe4;
            shr.u32 d, c, 4;
            lop3.b32 c, c, d, 0x0f0f0f0f, 0xe4;
            prmt.b32 $0, a, c, 0x6420;
            }""",
            "=r,f,f,f,f,f,f,f,f", [even, odd], dtype=tl.uint8, is_pure=True, pack=4,
        )  # fmt: skip
    return out


@triton.jit
def e2m1_values(codes):
    """E2M1 (int32, the lowest four bits of it) to float32. Its bits are a float32's whose exponent lacks 126."""
    bits = ((codes & 7) << 22) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
