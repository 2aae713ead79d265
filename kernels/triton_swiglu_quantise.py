"""An expert's activation and the FP8 quantiser behind it: gate | up in, numbers on the FP8 grid out, bfloat16.

Legend: P rows · I inner columns · a program takes R rows × G groups of P = 16 pairs of columns, two bfloat16 in an int32 each.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import sigmoid
from deepinfer.kernels.triton_formats import (
    fp8_power,
    high_half,
    low_half,
    pair_of_bf16,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e4m3_grid
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

GROUP = 32
TILE_ROWS, TILE_GROUPS, WARPS = 4, 8, 4  # measured on an H200


@triton.jit
def _activated(gate, up, limit):
    """silu(min(gate, limit)) · clamp(up, ±limit); a NaN stays one."""
    gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    return gate * sigmoid(gate) * tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _swiglu_quantise(
    h_ptr, weight_ptr, out_ptr, used_ptr, num_rows, limit,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, INNER: tl.constexpr, WEIGHTED: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    tiles: tl.constexpr = (INNER // 32 + GROUPS - 1) // GROUPS
    half: tl.constexpr = INNER // 2
    first_row = tl.program_id(0) // tiles * ROWS
    row_R = first_row + tl.arange(0, ROWS)
    if COUNTED:
        num_rows = tl.load(used_ptr)
    if first_row < num_rows:
        group_G = tl.program_id(0) % tiles * GROUPS + tl.arange(0, GROUPS)
        pair_GP = group_G[:, None] * 16 + tl.arange(0, 16)[None, :]
        there_RGP = (row_R < num_rows)[:, None, None] & (pair_GP < half)[None]
        gate_ptr_RGP = h_ptr + row_R.to(tl.int64)[:, None, None] * (2 * half) + pair_GP[None]
        gate_RGP = tl.load(gate_ptr_RGP, mask=there_RGP, other=0)
        up_RGP = tl.load(gate_ptr_RGP + half, mask=there_RGP, other=0)
        even_RGP = _activated(low_half(gate_RGP), low_half(up_RGP), limit)
        odd_RGP = _activated(high_half(gate_RGP), high_half(up_RGP), limit)
        if WEIGHTED:
            weight_R11 = tl.load(weight_ptr + row_R, mask=row_R < num_rows, other=0.0)[:, None, None]
            even_RGP, odd_RGP = even_RGP * weight_R11, odd_RGP * weight_R11
        y_RGP = pair_of_bf16(even_RGP, odd_RGP)
        power_RG = fp8_power(greatest_of_pairs(y_RGP, 2))
        grid_RGP = pair_on_e4m3_grid(y_RGP, tl.broadcast_to(power_RG[:, :, None], y_RGP.shape))
        tl.store(out_ptr + row_R.to(tl.int64)[:, None, None] * half + pair_GP[None], grid_RGP, mask=there_RGP)


def swiglu_quantise(h_PJ: Tensor, weight_P: Tensor | None, limit: float, used_1: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight [P, I] on the FP8 grid; h = gate | up bfloat16 [P, 2 I].

    `used_1` (int32, on the device) is how many rows hold anything; the others are not written.
    """
    rows, inner = h_PJ.shape[0], h_PJ.shape[1] // 2
    assert h_PJ.dtype == torch.bfloat16 and h_PJ.is_contiguous(), "gate and up are contiguous bfloat16 rows"
    assert h_PJ.data_ptr() % 16 == 0, "gate and up begin at 16 bytes"
    assert h_PJ.shape[1] == 2 * inner and inner % GROUP == 0 < inner, "gate and up are whole groups of 32"
    plain = weight_P is None or (weight_P.dtype == torch.float32 and weight_P.shape == (rows,))
    assert plain and (weight_P is None or weight_P.is_contiguous()), "weights are contiguous float32, one a row"
    assert used_1 is None or (used_1.dtype == torch.int32 and used_1.numel() == 1), "the number of rows is one int32"
    out_PI = h_PJ.new_empty(rows, inner)
    if rows:
        _swiglu_quantise[(triton.cdiv(inner // GROUP, TILE_GROUPS) * triton.cdiv(rows, TILE_ROWS),)](
            h_PJ.view(torch.int32), weight_P, out_PI.view(torch.int32), used_1, rows, limit,
            ROWS=TILE_ROWS, GROUPS=TILE_GROUPS, INNER=inner, WEIGHTED=weight_P is not None, COUNTED=used_1 is not None,
            num_warps=WARPS, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out_PI
