"""RMS norm of bfloat16 rows and the FP8 quantiser behind it. A row's numbers stay in registers between the two passes over it.

Legend: T rows · D = PIECES · GROUPS · 32 columns · G = D / 32 groups of P = 16 pairs of columns, two bfloat16 in an int32 each.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import reciprocal_rms
from deepinfer.kernels.triton_formats import (
    fp8_power,
    high_half,
    inverse_power_value,
    low_half,
    pair_of_bf16,
    pair_of_e4m3,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e4m3_grid
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

from deepinfer.ops.norm_quantise import Quantised

GROUP = 32
# width → rows and warps of a program; measured on an H200
TILES = {5120: (1, 4), 1280: (1, 1), 512: (4, 2), 128: (8, 1)}
ANY_TILE = (1, 4)  # of other widths


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _norm_quantise(
    x_ptr, weight_ptr, normed_ptr, grid_ptr, codes_ptr, powers_ptr, num_rows, x_stride, eps,
    ROWS: tl.constexpr, PIECES: tl.constexpr, GROUPS: tl.constexpr,
    NORMED: tl.constexpr, GRID: tl.constexpr, CODES: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R11 = (row_R < num_rows)[:, None, None]
    wide_R11 = row_R.to(tl.int64)[:, None, None]
    group_G = tl.arange(0, GROUPS)
    pair_GP = group_G[:, None] * 16 + tl.arange(0, 16)[None, :]
    half: tl.constexpr = PIECES * GROUPS * 16
    pieces, weights = (), ()
    squares_RGP = tl.zeros((ROWS, GROUPS, 16), tl.float32)
    for piece in tl.static_range(PIECES):
        offset_RGP = wide_R11 * x_stride + (piece * GROUPS * 16 + pair_GP)[None]
        x_RGP = tl.load(x_ptr + offset_RGP, mask=there_R11, other=0)
        squares_RGP = tl.fma(low_half(x_RGP), low_half(x_RGP), squares_RGP)
        squares_RGP = tl.fma(high_half(x_RGP), high_half(x_RGP), squares_RGP)
        pieces += (x_RGP,)
        weights += (tl.load(weight_ptr + piece * GROUPS * 16 + pair_GP)[None],)
    scale_R11 = reciprocal_rms(tl.sum(tl.sum(squares_RGP, 2), 1), half * 2, eps)[:, None, None]
    for piece in tl.static_range(PIECES):
        x_RGP, weight_1GP = pieces[piece], weights[piece]
        even_RGP = low_half(x_RGP) * scale_R11 * low_half(weight_1GP)
        y_RGP = pair_of_bf16(even_RGP, high_half(x_RGP) * scale_R11 * high_half(weight_1GP))
        offset_RGP = wide_R11 * half + (piece * GROUPS * 16 + pair_GP)[None]
        if NORMED:
            tl.store(normed_ptr + offset_RGP, y_RGP, mask=there_R11)
        if GRID or CODES:
            power_RG = fp8_power(greatest_of_pairs(y_RGP, 2))
            if GRID:
                grid_RGP = pair_on_e4m3_grid(y_RGP, tl.broadcast_to(power_RG[:, :, None], y_RGP.shape))
                tl.store(grid_ptr + offset_RGP, grid_RGP, mask=there_R11)
            if CODES:
                inverse_RG1 = inverse_power_value(power_RG)[:, :, None]
                codes_RGP = pair_of_e4m3(low_half(y_RGP) * inverse_RG1, high_half(y_RGP) * inverse_RG1)
                tl.store(codes_ptr + offset_RGP, codes_RGP, mask=there_R11)
                offset_RG = row_R.to(tl.int64)[:, None] * (half // 16) + (piece * GROUPS + group_G)[None, :]
                tl.store(powers_ptr + offset_RG, power_RG.to(tl.uint8), mask=(row_R < num_rows)[:, None])


def norm_quantise(
    x_TD: Tensor, weight_D: Tensor, eps: float, *, normed: bool = False, grid: bool = True, codes: bool = False
) -> Quantised:
    """rms_norm(x) as it is (`normed`), on the FP8 grid (`grid`) or as codes and powers (`codes`); bfloat16 in and out.

    `x_TD` may be a slice of columns.
    """
    rows, width = x_TD.shape
    assert x_TD.dtype == weight_D.dtype == torch.bfloat16, "rows and weight are bfloat16"
    assert width % GROUP == 0 < width, f"rows are whole groups of {GROUP} wide, not {width}"
    assert x_TD.stride(1) == 1 and x_TD.stride(0) % 8 == 0 and x_TD.data_ptr() % 16 == 0, "rows begin at 16 bytes"
    assert weight_D.is_contiguous() and weight_D.shape == (width,) and weight_D.data_ptr() % 4 == 0, (
        f"norm_quantise was given a weight {tuple(weight_D.shape)} for rows of {width}; it is read in pairs: give a contiguous "
        f"one [{width}] that begins at 4 bytes"
    )
    assert normed + grid + codes > 0, "at least one form is asked for"
    tile_rows, warps = TILES.get(width, ANY_TILE)
    groups = min(GROUP, width // GROUP & -(width // GROUP))
    out = Quantised(
        normed_TD=x_TD.new_empty(rows, width) if normed else None,
        grid_TD=x_TD.new_empty(rows, width) if grid else None,
        codes_TD=x_TD.new_empty(rows, width, dtype=torch.float8_e4m3fn) if codes else None,
        powers_TG=x_TD.new_empty(rows, width // GROUP, dtype=torch.uint8) if codes else None,
    )
    if rows:
        _norm_quantise[(triton.cdiv(rows, tile_rows),)](
            x_TD.view(torch.int32), weight_D.view(torch.int32), *in_pairs(out), out.powers_TG, rows, x_TD.stride(0) // 2,
            eps, ROWS=tile_rows, PIECES=width // GROUP // groups, GROUPS=groups, NORMED=normed, GRID=grid, CODES=codes,
            num_warps=warps, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out


def in_pairs(out: Quantised) -> tuple[Tensor | None, ...]:
    """Normed rows, rows on the grid and codes as the kernels write them: two numbers at once."""
    pairs = ((out.normed_TD, torch.int32), (out.grid_TD, torch.int32), (out.codes_TD, torch.int16))
    return tuple(None if part is None else part.view(dtype) for part, dtype in pairs)
