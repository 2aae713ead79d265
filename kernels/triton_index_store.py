"""Index keys: RMS norm, rotation of the last dims, FP4 packing and the write to the index rows, in one pass.

Legend: E entries · K key dims = G groups of 16 pairs · F rope frequencies · [A, B, R = K / 2 + K / 32] a store.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import (
    E2M1_UNIT,
    fp4_power,
    high_half,
    inverse_power_value,
    low_half,
    pair_of_e2m1,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs
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
def _index_store(
    key_ptr, weight_ptr, rope_ptr, store_ptr, rows_ptr, num_rows, key_stride, block_stride, eps,
    BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_rows
    start_R, kept_R = row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS, GROUPS * 17)
    group_G = tl.arange(0, GROUPS)
    pair_1GP = (group_G[:, None] * 16 + tl.arange(0, 16)[None, :])[None]
    offset_RGP = row_R.to(tl.int64)[:, None, None] * key_stride + pair_1GP
    x_RGP = tl.load(key_ptr + offset_RGP, mask=there_R[:, None, None], other=0)
    even_RGP, odd_RGP = low_half(x_RGP), high_half(x_RGP)
    normed_RGP = norm_pairs(even_RGP, odd_RGP, weight_pairs(weight_ptr, GROUPS, 16), eps, GROUPS, 16)
    cos_RGP, sin_RGP, turned_RGP = angles(rope_ptr, row_R, there_R, GROUPS, 16, FREQUENCIES)
    key_RGP = rotated_pairs(normed_RGP, cos_RGP, sin_RGP, turned_RGP)
    even_RGP, odd_RGP = low_half(key_RGP), high_half(key_RGP)
    power_RG = fp4_power(greatest_of_pairs(key_RGP, 2))
    inverse_RG1 = (inverse_power_value(power_RG) * E2M1_UNIT)[:, :, None]
    bytes_RGP = pair_of_e2m1(even_RGP * inverse_RG1, odd_RGP * inverse_RG1)
    tl.store(store_ptr + start_R[:, None, None] + pair_1GP, bytes_RGP, mask=kept_R[:, None, None])
    power_ptr = store_ptr + start_R[:, None] + GROUPS * 16 + group_G[None, :]
    tl.store(power_ptr, power_RG.to(tl.uint8), mask=kept_R[:, None])


def index_store(
    key_EK: Tensor, weight_K: Tensor, eps: float, rope_E2F: Tensor, store_ABR: Tensor, rows_E: Tensor
) -> None:
    """Index keys (bfloat16) into rows `rows_E` (int32, -1: nowhere)."""
    width, frequencies = len(weight_K), rope_E2F.shape[2]
    check_width(width, frequencies, GROUP)
    check_key_rows(key_EK, weight_K, rope_E2F, rows_E, width, frequencies)
    check_store(store_ABR, width // 2 + width // GROUP, alignment_bytes=4)
    if len(rows_E):
        _index_store[(triton.cdiv(len(rows_E), TILE_ROWS),)](
            key_EK.view(torch.int32), weight_K.view(torch.int32), rope_E2F, store_ABR, rows_E, len(rows_E),
            key_EK.stride(0) // 2, store_ABR.stride(0), eps,
            BLOCK_ROWS=store_ABR.shape[1], ROWS=TILE_ROWS, GROUPS=width // GROUP, FREQUENCIES=frequencies,
            num_warps=WARPS, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
