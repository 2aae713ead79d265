"""What the kernels that store keys have in common: RMS norm and rotation of a register tile, and their layouts.

Columns go in pairs, as rotation and packing want them: two bfloat16 in an int32, which one instruction makes of two float32.

Legend: R rows of a tile · K key dims = G groups of P pairs · F rope frequencies, of the last F pairs.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import reciprocal_rms
from deepinfer.kernels.triton_formats import high_half, low_half, pair_of_bf16
from torch import Tensor


@triton.jit
def weight_pairs(weight_ptr, GROUPS: tl.constexpr, PAIRS: tl.constexpr):
    """The norm weight in pairs of bfloat16 [1, G, P]."""
    pair_GP = tl.arange(0, GROUPS)[:, None] * PAIRS + tl.arange(0, PAIRS)[None, :]
    return tl.load(weight_ptr + pair_GP)[None]


@triton.jit
def norm_pairs(even_RGP, odd_RGP, weight_1GP, eps, GROUPS: tl.constexpr, PAIRS: tl.constexpr):
    """RMS norm of rows given as even and odd columns (float32), as pairs of bfloat16 [R, G, P]."""
    total_R = tl.sum(tl.sum(tl.fma(even_RGP, even_RGP, odd_RGP * odd_RGP), 2), 1)
    scale_R11 = reciprocal_rms(total_R, GROUPS * PAIRS * 2, eps)[:, None, None]
    return pair_of_bf16(even_RGP * scale_R11 * low_half(weight_1GP), odd_RGP * scale_R11 * high_half(weight_1GP))


@triton.jit
def angles(rope_ptr, row_R, there_R, GROUPS: tl.constexpr, PAIRS: tl.constexpr, FREQUENCIES: tl.constexpr):
    """Cosines and sines of the rows' pairs [R, G, P], and which pairs are turned at all: the last F."""
    pair_GP = tl.arange(0, GROUPS)[:, None] * PAIRS + tl.arange(0, PAIRS)[None, :]
    frequency_1GP = (pair_GP - (GROUPS * PAIRS - FREQUENCIES))[None]
    turned_RGP = there_R[:, None, None] & (frequency_1GP >= 0)
    angle_ptr = rope_ptr + row_R.to(tl.int64)[:, None, None] * (2 * FREQUENCIES) + frequency_1GP
    cos_RGP = tl.load(angle_ptr, mask=turned_RGP, other=1.0)
    return cos_RGP, tl.load(angle_ptr + FREQUENCIES, mask=turned_RGP, other=0.0), turned_RGP


@triton.jit
def rotated_pairs(pair_RGP, cos_RGP, sin_RGP, turned_RGP):
    """Pairs of bfloat16 with the turned ones among them turned, and rounded to bfloat16 again."""
    even_RGP, odd_RGP = low_half(pair_RGP), high_half(pair_RGP)
    turned = pair_of_bf16(even_RGP * cos_RGP - odd_RGP * sin_RGP, odd_RGP * cos_RGP + even_RGP * sin_RGP)
    return tl.where(turned_RGP, turned, pair_RGP)


@triton.jit
def row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS: tl.constexpr, ROW_BYTES: tl.constexpr):
    """Where the numbered rows begin in their store, in bytes, and which of them are to be stored at all."""
    place_R = tl.load(rows_ptr + row_R, mask=there_R, other=-1)
    kept_R = place_R >= 0
    place_R = tl.maximum(place_R, 0)
    start_R = (place_R // BLOCK_ROWS).to(tl.int64) * block_stride + (place_R % BLOCK_ROWS).to(tl.int64) * ROW_BYTES
    return start_R, kept_R


def check_key_rows(
    key_TK: Tensor, weight_K: Tensor, rope_T2F: Tensor, rows_T: Tensor, width: int, frequencies: int
) -> None:
    """Assert the layout of keys, norm weight, rotations and row numbers."""
    rows = rows_T.shape[0]
    assert key_TK.shape == (rows, width) and key_TK.stride(1) == 1, f"keys are rows of {width} adjacent numbers"
    assert key_TK.dtype == torch.bfloat16, "keys are bfloat16"
    assert key_TK.stride(0) % 8 == 0 and key_TK.data_ptr() % 16 == 0, "keys begin at 16 bytes"
    check_key_facts(weight_K, rope_T2F, rows_T, width, frequencies)


def check_key_facts(weight_K: Tensor, rope_T2F: Tensor, rows_T: Tensor, width: int, frequencies: int) -> None:
    """Assert the layout of norm weight, rotations and row numbers."""
    rows = rows_T.shape[0]
    assert weight_K.dtype == torch.bfloat16 and weight_K.shape == (width,), f"the norm weight is bfloat16 [{width}]"
    assert weight_K.is_contiguous() and weight_K.data_ptr() % 4 == 0, (
        "the norm weight is contiguous and begins at 4 bytes"
    )
    assert rope_T2F.dtype == torch.float32 and rope_T2F.is_contiguous(), "rotations are contiguous float32"
    assert rope_T2F.shape == (rows, 2, frequencies), f"a row has {frequencies} cosines and sines"
    assert rows_T.dtype == torch.int32 and rows_T.is_contiguous(), "row numbers are contiguous int32"


def check_width(width: int, frequencies: int, group: int) -> None:
    """Assert that rows of keys have a number of groups that a register tile may have, and hold what is turned."""
    assert width % group == 0 < width and width & (width - 1) == 0 and frequencies * 2 <= width, (
        f"a key has a power of two of numbers, from {group} on, and no more of them are turned: not {width} and "
        f"{2 * frequencies}"
    )


def check_store(store_ABR: Tensor, row_bytes: int, alignment_bytes: int) -> None:
    """Assert that rows of `row_bytes` lie side by side in blocks that begin at `alignment_bytes`, or where such rows may."""
    assert store_ABR.dtype == torch.uint8 and store_ABR.shape[2] == row_bytes, f"a stored row has {row_bytes} bytes"
    assert store_ABR.stride()[1:] == (row_bytes, 1) and store_ABR.shape[1], "a block has rows, and they are adjacent"
    alignment_bytes = min(alignment_bytes, row_bytes & -row_bytes)
    aligned = store_ABR.stride(0) % alignment_bytes == 0 and store_ABR.data_ptr() % alignment_bytes == 0
    assert aligned, f"blocks and their rows begin at multiples of {alignment_bytes} bytes"
