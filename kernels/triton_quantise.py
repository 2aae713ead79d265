"""The FP8 quantiser of activations by itself: bfloat16 rows onto the grid e4m3 · 2^e, or to codes and powers.

Legend: T rows · D columns · G = D / 32 groups · B groups of a program · P = 16 pairs of columns, two bfloat16 in an int32
each.
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
from deepinfer.kernels.triton_norm_quantise import in_pairs
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

from deepinfer.ops.norm_quantise import Quantised

GROUP = 32
TILE_GROUPS, WARPS = 32, 2  # measured on an H200


@triton.jit(do_not_specialize=["num_groups"])  # or steps of other sizes would wait for their own compilation
def _quantise(
    x_ptr, grid_ptr, codes_ptr, powers_ptr, num_groups, x_stride,
    ROW_GROUPS: tl.constexpr, TILE: tl.constexpr, GRID: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    group_B = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there_B1 = (group_B < num_groups)[:, None]
    pair_1P = tl.arange(0, 16)[None, :]
    start_B = group_B // ROW_GROUPS * x_stride + group_B % ROW_GROUPS * 16
    x_BP = tl.load(x_ptr + start_B[:, None] + pair_1P, mask=there_B1, other=0)
    power_B = fp8_power(greatest_of_pairs(x_BP, 1))
    offset_BP = group_B[:, None] * 16 + pair_1P
    if GRID:
        grid_BP = pair_on_e4m3_grid(x_BP, tl.broadcast_to(power_B[:, None], x_BP.shape))
        tl.store(grid_ptr + offset_BP, grid_BP, mask=there_B1)
    if CODES:
        inverse_B1 = inverse_power_value(power_B)[:, None]
        codes_BP = pair_of_e4m3(low_half(x_BP) * inverse_B1, high_half(x_BP) * inverse_B1)
        tl.store(codes_ptr + offset_BP, codes_BP, mask=there_B1)
        tl.store(powers_ptr + group_B, power_B.to(tl.uint8), mask=group_B < num_groups)


def quantise(x_TD: Tensor, *, grid: bool = True, codes: bool = False) -> Quantised:
    """bfloat16 rows on the FP8 grid (`grid`) or as codes and powers (`codes`). `x_TD` may be a slice of columns."""
    rows, width = x_TD.shape
    assert x_TD.dtype == torch.bfloat16 and width % GROUP == 0 < width, "bfloat16 rows of whole groups of 32"
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
            x_TD.view(torch.int32), *in_pairs(out)[1:], out.powers_TG, groups, x_TD.stride(0) // 2,
            ROW_GROUPS=width // GROUP, TILE=TILE_GROUPS, GRID=grid, CODES=codes,
            num_warps=WARPS, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out
