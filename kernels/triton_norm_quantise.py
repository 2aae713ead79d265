"""RMS norm of bfloat16 rows and the FP8 quantiser behind it. A row's numbers stay in registers between the two passes over it.

Legend: T rows · D = PIECES · GROUPS · 32 columns · G = D / 32 groups.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import reciprocal_rms
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
# width → rows and warps of a program; measured on an H200
TILES = {5120: (1, 4), 1280: (1, 1), 512: (4, 2), 128: (8, 1)}


@triton.jit
def _norm_quantise(
    x_ptr, weight_ptr, normed_ptr, grid_ptr, codes_ptr, powers_ptr, num_rows, x_stride, eps,
    ROWS: tl.constexpr, PIECES: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, GRID: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R11 = (row_R < num_rows)[:, None, None]
    group_G = tl.arange(0, GROUPS)
    column_GK = group_G[:, None] * 32 + tl.arange(0, 32)[None, :]
    wide: tl.constexpr = PIECES * GROUPS * 32
    pieces = ()
    squares_RGK = tl.zeros((ROWS, GROUPS, 32), tl.float32)
    for piece in tl.static_range(PIECES):
        offset_RGK = row_R.to(tl.int64)[:, None, None] * x_stride + (piece * GROUPS * 32 + column_GK)[None]
        x_RGK = tl.load(x_ptr + offset_RGK, mask=there_R11, other=0.0).to(tl.float32)
        squares_RGK += x_RGK * x_RGK
        pieces += (x_RGK,)
    scale_R11 = reciprocal_rms(tl.sum(tl.sum(squares_RGK, 2), 1), wide, eps)[:, None, None]
    for piece in tl.static_range(PIECES):
        weight_GK = tl.load(weight_ptr + piece * GROUPS * 32 + column_GK).to(tl.float32)
        normed_RGK = as_bf16(pieces[piece] * scale_R11 * weight_GK[None])
        offset_RGK = row_R.to(tl.int64)[:, None, None] * wide + (piece * GROUPS * 32 + column_GK)[None]
        if NORMED:
            tl.store(normed_ptr + offset_RGK, normed_RGK, mask=there_R11)
        if GRID or CODES:
            y_RGK = normed_RGK.to(tl.float32)
            power_RG = fp8_power(tl.max(magnitude_bits(y_RGK), 2))
            y_RGK = y_RGK * inverse_power_value(power_RG)[:, :, None]
            codes_RGK = e4m3_codes(y_RGK)
            if GRID:
                grid_RGK = e4m3_rounded(y_RGK) if CODES else e4m3_values(codes_RGK)
                grid_RGK = grid_RGK * power_value(power_RG)[:, :, None]
                tl.store(grid_ptr + offset_RGK, as_bf16(grid_RGK), mask=there_R11)
            if CODES:
                tl.store(codes_ptr + offset_RGK, codes_RGK, mask=there_R11)
                offset_RG = row_R.to(tl.int64)[:, None] * (wide // 32) + (piece * GROUPS + group_G)[None, :]
                tl.store(powers_ptr + offset_RG, power_RG.to(tl.uint8), mask=(row_R < num_rows)[:, None])


def norm_quantise(
    x_TD: Tensor, weight_D: Tensor, eps: float, *, normed: bool = False, grid: bool = True, codes: bool = False
) -> Quantised:
    """rms_norm(x) as it is (`normed`), on the FP8 grid (`grid`) or as codes and powers (`codes`); bfloat16 in and out.

    `x_TD` may be a slice of columns.
    """
    rows, width = x_TD.shape
    assert x_TD.dtype == weight_D.dtype == torch.bfloat16, "rows and weight are bfloat16"
    assert width in TILES, f"rows are {', '.join(map(str, TILES))} wide, not {width}"
    assert x_TD.stride(1) == 1 and x_TD.stride(0) % 8 == 0 and x_TD.data_ptr() % 16 == 0, "rows begin at 16 bytes"
    assert weight_D.is_contiguous() and normed + grid + codes > 0, "a plain weight, and at least one form asked for"
    tile_rows, warps = TILES[width]
    groups = min(GROUP, width // GROUP & -(width // GROUP))
    out = Quantised(
        normed_TD=x_TD.new_empty(rows, width) if normed else None,
        grid_TD=x_TD.new_empty(rows, width) if grid else None,
        codes_TD=x_TD.new_empty(rows, width, dtype=torch.float8_e4m3fn) if codes else None,
        powers_TG=x_TD.new_empty(rows, width // GROUP, dtype=torch.uint8) if codes else None,
    )
    if rows:
        _norm_quantise[(triton.cdiv(rows, tile_rows),)](
            x_TD, weight_D, out.normed_TD, out.grid_TD, None if out.codes_TD is None else out.codes_TD.view(torch.uint8),
            out.powers_TG, rows, x_TD.stride(0), eps,
            ROWS=tile_rows, PIECES=width // GROUP // groups, GROUPS=groups, NORMED=normed, GRID=grid, CODES=codes,
            num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out
