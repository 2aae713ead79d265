"""Index queries turned and rounded to the FP4 index grid in one pass (Triton). Bit-equal to the twin: no fused multiply-adds.

Legend: T rows · I index heads · K = 128 dims, the last 2F turned · F rotated pairs.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import fp4_power, magnitude_bits
from torch import Tensor

DIMS = 128
LINES = 16  # heads a program


def rotate_quantise_index_q(q_TIK: Tensor, rope_T2F: Tensor, out_TIK: Tensor | None = None) -> Tensor:
    """q bf16 [T, I, 128] with its last 2F dims turned by rope float32 [T, 2, F], then rounded to FP4 with scales per 32."""
    rows, heads, dims = q_TIK.shape
    frequencies = rope_T2F.shape[-1]
    assert q_TIK.dtype == torch.bfloat16 and q_TIK.is_contiguous() and dims == DIMS, "contiguous bf16 [T, I, 128]"
    assert rope_T2F.dtype == torch.float32 and rope_T2F.is_contiguous(), "contiguous float32 cosines and sines"
    assert rope_T2F.shape == (rows, 2, frequencies) and 2 * frequencies <= DIMS, "one line of cosines and sines a row"
    out_TIK = torch.empty_like(q_TIK) if out_TIK is None else out_TIK
    assert out_TIK.shape == q_TIK.shape and out_TIK.dtype == q_TIK.dtype and out_TIK.is_contiguous(), "out is like q"
    lines = rows * heads
    _rotate_quantise[(triton.cdiv(lines, LINES),)](
        q_TIK.view(torch.int16), rope_T2F, out_TIK.view(torch.int16), lines, heads, frequencies, LINES,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out_TIK


@triton.jit
def _rotate_quantise(q, rope, out, lines, heads, frequencies, LINES: tl.constexpr):
    line_L = tl.program_id(0) * LINES + tl.arange(0, LINES)
    place_LK = line_L[:, None].to(tl.int64) * 128 + tl.arange(0, 128)[None, :]
    inside_LK = (line_L < lines)[:, None]
    bits_LK = tl.load(q + place_LK, mask=inside_LK, other=0).to(tl.int32) << 16  # the interpreter converts no tiny bf16
    x = bits_LK.to(tl.float32, bitcast=True)
    even_LP, odd_LP = tl.split(tl.reshape(x, (LINES, 64, 2)))
    turned_P = tl.arange(0, 64) - (64 - frequencies)  # the pair's frequency, negative where it stands still
    angle_LP = (line_L // heads)[:, None] * (2 * frequencies) + turned_P[None, :]
    turns_LP = (turned_P >= 0)[None, :] & (line_L < lines)[:, None]
    cos_LP = tl.load(rope + angle_LP, mask=turns_LP, other=1.0)
    sin_LP = tl.load(rope + angle_LP + frequencies, mask=turns_LP, other=0.0)
    even, odd = even_LP * cos_LP - odd_LP * sin_LP, odd_LP * cos_LP + even_LP * sin_LP
    even = _rounded_bf16(tl.where(turns_LP, even, even_LP))
    odd = _rounded_bf16(tl.where(turns_LP, odd, odd_LP))
    # magnitudes are ordered as their bits are, NaN and infinity above all
    bits_LP = tl.maximum(magnitude_bits(even), magnitude_bits(odd))
    most_LG = tl.max(tl.reshape(bits_LP, (LINES, 4, 16)), axis=2)
    byte_LGP = tl.broadcast_to(fp4_power(most_LG)[:, :, None], (LINES, 4, 16))
    byte_LP = tl.reshape(byte_LGP, (LINES, 64))
    result = tl.reshape(tl.join(_on_grid(even, byte_LP), _on_grid(odd, byte_LP)), (LINES, 128))
    tl.store(out + place_LK, result, mask=inside_LK)


@triton.jit
def _rounded_bf16(x):
    """The nearest bf16 number, ties to even; by integers, because the interpreter's own conversion cuts off."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where((bits & 0x7FFFFFFF) < 0x7F800000, nearest, bits).to(tl.float32, bitcast=True)


@triton.jit
def _nearest(x):
    """Nearest integer, ties to even, of 0 ≤ x < 2^22: the sum has no room for a fraction."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _on_grid(x, byte):
    """Bits of x rounded to E2M1 times 2^(byte - 127), as bf16; NaN where byte is 255."""
    scale = (byte << 23).to(tl.float32, bitcast=True)
    inverse = (tl.maximum(254 - byte, 0) << 23).to(tl.float32, bitcast=True)
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum((bits & 0x7FFFFFFF).to(tl.float32, bitcast=True) * inverse, 6.0)
    wide = tl.where(size < 4.0, _nearest(size), _nearest(size * 0.5) * 2.0)
    size = tl.where(size < 2.0, _nearest(size * 2.0) * 0.5, wide) * scale
    signed = tl.where(byte == 255, 0x7FC00000, size.to(tl.int32, bitcast=True) | (bits & -0x80000000))
    return (signed >> 16).to(tl.int16)  # exact: a grid number has two significant bits
