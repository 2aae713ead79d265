"""Window keys: RMS norm, rotation of the last dims, FP8 packing and the write to ring rows, in one pass.

Legend: T rows · K key dims = G groups of P = 16 pairs · F rope frequencies · [A, B, R = K + K / 32] rings.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import (
    fp8_power,
    high_half,
    inverse_power_value,
    low_half,
    pair_of_e4m3,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e4m3_grid
from deepinfer.kernels.triton_norm_rope import (
    angles,
    check_key_rows,
    check_store,
    check_width,
    norm_pairs,
    rotated_pairs,
    row_starts,
    weight_pairs,
)
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

GROUP = 32
TILE_ROWS, WARPS = 4, 1  # measured on an H200


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _store_window(
    key_ptr, weight_ptr, rope_ptr, store_ptr, rows_ptr, out_ptr, num_rows, key_stride, block_stride, eps,
    BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_rows
    start_R, kept_R = row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS, GROUPS * 33)
    there_R11 = there_R[:, None, None]
    group_G = tl.arange(0, GROUPS)
    pair_1GP = (group_G[:, None] * 16 + tl.arange(0, 16)[None, :])[None]
    x_RGP = tl.load(key_ptr + row_R.to(tl.int64)[:, None, None] * key_stride + pair_1GP, mask=there_R11, other=0)
    even_RGP, odd_RGP = low_half(x_RGP), high_half(x_RGP)
    normed_RGP = norm_pairs(even_RGP, odd_RGP, weight_pairs(weight_ptr, GROUPS, 16), eps, GROUPS, 16)
    cos_RGP, sin_RGP, turned_RGP = angles(rope_ptr, row_R, there_R, GROUPS, 16, FREQUENCIES)
    key_RGP = rotated_pairs(normed_RGP, cos_RGP, sin_RGP, turned_RGP)
    even_RGP, odd_RGP = low_half(key_RGP), high_half(key_RGP)
    power_RG = fp8_power(greatest_of_pairs(key_RGP, 2))
    inverse_RG1 = inverse_power_value(power_RG)[:, :, None]
    even_RGP, odd_RGP = even_RGP * inverse_RG1, odd_RGP * inverse_RG1
    code_ptr = (store_ptr + start_R).to(tl.pointer_type(tl.int16))[:, None, None] + pair_1GP
    tl.store(code_ptr, pair_of_e4m3(even_RGP, odd_RGP), mask=kept_R[:, None, None])
    power_ptr = store_ptr + start_R[:, None] + GROUPS * 32 + group_G[None, :]
    tl.store(power_ptr, power_RG.to(tl.uint8), mask=kept_R[:, None])
    if KEYS:
        out_RGP = pair_on_e4m3_grid(key_RGP, tl.broadcast_to(power_RG[:, :, None], key_RGP.shape))
        tl.store(out_ptr + row_R.to(tl.int64)[:, None, None] * (GROUPS * 16) + pair_1GP, out_RGP, mask=there_R11)


def norm_rope_store_window(
    key_TK: Tensor,
    weight_K: Tensor,
    eps: float,
    rope_T2F: Tensor,
    store_ABR: Tensor,
    rows_T: Tensor,
    *,
    keys: bool = False,
) -> Tensor | None:
    """Window keys into ring rows `rows_T` (int32, -1: nowhere); with `keys` also returned as they read back, bfloat16 [T, K].

    `key_TK` may be a slice of columns.
    """
    rows, width, frequencies = len(key_TK), len(weight_K), rope_T2F.shape[2]
    check_width(width, frequencies, 2 * GROUP)  # codes are written in pairs, so a row has an even number of bytes
    check_key_rows(key_TK, weight_K, rope_T2F, rows_T, width, frequencies)
    check_store(store_ABR, width + width // GROUP, alignment_bytes=16)
    out_TK = key_TK.new_empty(rows, width) if keys else None
    if rows:
        _store_window[(triton.cdiv(rows, TILE_ROWS),)](
            key_TK.view(torch.int32), weight_K.view(torch.int32), rope_T2F, store_ABR, rows_T,
            None if out_TK is None else out_TK.view(torch.int32), rows, key_TK.stride(0) // 2, store_ABR.stride(0),
            eps, BLOCK_ROWS=store_ABR.shape[1], ROWS=TILE_ROWS, GROUPS=width // GROUP, FREQUENCIES=frequencies, KEYS=keys,
            num_warps=WARPS, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out_TK
