"""The FP8 quantiser of activations by itself: bfloat16 rows onto the grid e4m3 · 2^e, or to codes and powers.

Legend: T rows · D columns · G = D / 32 groups · B groups of a program.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import (
    as_bf16,
    e4m3_codes,
    e4m3_rounded,
    e4m3_values,
    fp8_power,
    inverse_power_value,
    magnitude_bits,
    power_value,
)
from torch import Tensor

from deepinfer.ops.norm_quantise import Quantised

GROUP = 32
TILE_GROUPS, WARPS = 32, 2  # measured on an H200


@triton.jit
def _quantise(
    x_ptr, grid_ptr, codes_ptr, powers_ptr, num_groups, x_stride,
    ROW_GROUPS: tl.constexpr, TILE: tl.constexpr, GRID: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    group_B = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there_B1 = (group_B < num_groups)[:, None]
    column_K = tl.arange(0, 32)
    start_B = group_B // ROW_GROUPS * x_stride + group_B % ROW_GROUPS * 32
    x_BK = tl.load(x_ptr + start_B[:, None] + column_K[None, :], mask=there_B1, other=0.0).to(tl.float32)
    power_B = fp8_power(tl.max(magnitude_bits(x_BK), 1))
    x_BK = x_BK * inverse_power_value(power_B)[:, None]
    codes_BK = e4m3_codes(x_BK)
    offset_BK = group_B[:, None] * 32 + column_K[None, :]
    if GRID:
        grid_BK = e4m3_rounded(x_BK) if CODES else e4m3_values(codes_BK)
        tl.store(grid_ptr + offset_BK, as_bf16(grid_BK * power_value(power_B)[:, None]), mask=there_B1)
    if CODES:
        tl.store(codes_ptr + offset_BK, codes_BK, mask=there_B1)
        tl.store(powers_ptr + group_B, power_B.to(tl.uint8), mask=group_B < num_groups)


def quantise(x_TD: Tensor, *, grid: bool = True, codes: bool = False) -> Quantised:
    """bfloat16 rows on the FP8 grid (`grid`) or as codes and powers (`codes`). `x_TD` may be a slice of columns."""
    rows, width = x_TD.shape
    assert x_TD.dtype == torch.bfloat16 and width % GROUP == 0, "bfloat16 rows of whole groups of 32"
    assert x_TD.stride(1) == 1 and x_TD.stride(0) % 8 == 0 and x_TD.data_ptr() % 16 == 0, "rows begin at 16 bytes"
    assert grid or codes, "at least one form is asked for"
    out = Quantised(
        normed_TD=None,
        grid_TD=x_TD.new_empty(rows, width) if grid else None,
        codes_TD=x_TD.new_empty(rows, width, dtype=torch.float8_e4m3fn) if codes else None,
        powers_TG=x_TD.new_empty(rows, width // GROUP, dtype=torch.uint8) if codes else None,
    )
    if rows:
        groups = rows * (width // GROUP)
        _quantise[(triton.cdiv(groups, TILE_GROUPS),)](
            x_TD, out.grid_TD, None if out.codes_TD is None else out.codes_TD.view(torch.uint8), out.powers_TG, groups,
            x_TD.stride(0), ROW_GROUPS=width // GROUP, TILE=TILE_GROUPS, GRID=grid, CODES=codes,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out
