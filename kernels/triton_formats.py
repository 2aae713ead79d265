"""Rounding and packing of the number formats, for Triton kernels: the arithmetic of `deepinfer.formats` on register tiles.

A device converts with its own instructions (to nearest even, saturating, as checked against torch); under the interpreter,
whose conversions cut off instead, the same is done by integers. Greatest magnitudes are taken as integers, so that a NaN counts
as the greatest.
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
def through_bf16(x):
    """float32 rounded to what bfloat16 can hold."""
    return as_bf16(x).to(tl.float32)


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
def magnitude_bits(x):
    """float32 without its sign, as an integer in the order of its magnitude; infinity and NaN come last."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


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
def e4m3_rounded(y):
    """float32 of at most 448 rounded to what E4M3 can hold, to nearest even.

    For kernels that also store the codes: ptxas 12.8 and 12.9 lose conversions when a code is both packed for a store and
    converted back (unpacking then reads the stack pointer; seen on an H200 and in the disassembly).
    """
    bits = y.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    wide = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < (121 << 23), (magnitude.to(tl.float32, bitcast=True) + 16384.0) - 16384.0, wide)
    return (value.to(tl.int32, bitcast=True) | (bits & -0x80000000)).to(tl.float32, bitcast=True)


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
    """Two float32 as one byte (in an int32) of two E2M1 codes, `even` in the low nibble.

    They are quotients of bfloat16s, by a power of two or as `tidy_quotient` says: a device takes them through float16, whose 11
    bits likewise restore ties and move nothing over one, and then rounds both at once: below 1 by adding 512, whose last place
    is a half, elsewhere by carrying into the exponent.
    """
    if PLAIN:
        out = e2m1_codes(tidy_quotient(even)) | (e2m1_codes(tidy_quotient(odd)) << 4)
    else:
        out = tl.inline_asm_elementwise(
            """{
            .reg .b32 pair, size, small, wide, at_least_one, number;
            cvt.rn.f16x2.f32 pair, $2, $1;
            and.b32 size, pair, 0x7fff7fff;
            mov.b32 number, 0x46004600;
            min.f16x2 size, size, number;
            mov.b32 number, 0x60006000;
            add.rn.f16x2 small, size, number;
            shr.u32 wide, size, 9;
            and.b32 wide, wide, 0x00010001;
            add.u32 wide, wide, size;
            add.u32 wide, wide, 0x08ff08ff;
            shr.u32 wide, wide, 9;
            add.u32 at_least_one, size, 0x44004400;
            prmt.b32 at_least_one, at_least_one, at_least_one, 0xbb99;
            lop3.b32 small, at_least_one, wide, small, 0xca;
            shr.u32 pair, pair, 12;
            and.b32 pair, pair, 0x00080008;
            lop3.b32 small, small, 0x00070007, pair, 0xea;
            shr.u32 pair, small, 12;
            lop3.b32 $0, small, pair, 0xff, 0xa8;
            }""",
            "=r,f,f", [even, odd], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return out


@triton.jit
def e2m1_values(codes):
    """E2M1 (int32, the lowest four bits of it) to float32. Its bits are a float32's whose exponent lacks 126."""
    bits = ((codes & 7) << 22) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
