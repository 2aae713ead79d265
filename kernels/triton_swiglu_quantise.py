"""An expert's activation and the FP8 quantiser behind it: gate | up in, numbers on the FP8 grid out, bfloat16.

Legend: P rows · I inner columns · a program takes R rows × G groups of 32.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import (
    as_bf16,
    e4m3_codes,
    e4m3_values,
    fp8_power,
    inverse_power_value,
    magnitude_bits,
    power_value,
    through_bf16,
)
from torch import Tensor

GROUP = 32
TILE_ROWS, TILE_GROUPS, WARPS = 8, 8, 4  # measured on an H200


@triton.jit
def _swiglu_quantise(
    h_ptr, weight_ptr, out_ptr, used_ptr, num_rows, limit,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, INNER: tl.constexpr, WEIGHTED: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    tiles: tl.constexpr = (INNER // 32 + GROUPS - 1) // GROUPS
    first_row = tl.program_id(0) // tiles * ROWS
    row_R = first_row + tl.arange(0, ROWS)
    if COUNTED:
        num_rows = tl.load(used_ptr)
    if first_row < num_rows:
        group_G = tl.program_id(0) % tiles * GROUPS + tl.arange(0, GROUPS)
        column_GK = group_G[:, None] * 32 + tl.arange(0, 32)[None, :]
        there_RGK = (row_R < num_rows)[:, None, None] & (column_GK < INNER)[None]
        wide_R11 = row_R.to(tl.int64)[:, None, None]
        gate_RGK = tl.load(h_ptr + wide_R11 * (2 * INNER) + column_GK[None], mask=there_RGK, other=0.0).to(tl.float32)
        up_RGK = tl.load(h_ptr + wide_R11 * (2 * INNER) + (column_GK + INNER)[None], mask=there_RGK, other=0.0)
        up_RGK = up_RGK.to(tl.float32)
        gate_RGK = tl.where(gate_RGK > limit, limit, gate_RGK)  # comparisons keep a NaN
        up_RGK = tl.where(up_RGK > limit, limit, tl.where(up_RGK < -limit, -limit, up_RGK))
        y_RGK = gate_RGK / (1.0 + tl.exp(-gate_RGK)) * up_RGK
        if WEIGHTED:
            y_RGK = y_RGK * tl.load(weight_ptr + row_R, mask=row_R < num_rows, other=0.0)[:, None, None]
        y_RGK = through_bf16(y_RGK)
        power_RG = fp8_power(tl.max(magnitude_bits(y_RGK), 2))
        codes_RGK = e4m3_codes(y_RGK * inverse_power_value(power_RG)[:, :, None])
        grid_RGK = as_bf16(e4m3_values(codes_RGK) * power_value(power_RG)[:, :, None])
        tl.store(out_ptr + wide_R11 * INNER + column_GK[None], grid_RGK, mask=there_RGK)


def swiglu_quantise(h_PJ: Tensor, weight_P: Tensor | None, limit: float, used_1: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight [P, I] on the FP8 grid; h = gate | up bfloat16 [P, 2 I].

    `used_1` (int32, on the device) is how many rows hold anything; the others are not written.
    """
    rows, inner = h_PJ.shape[0], h_PJ.shape[1] // 2
    assert h_PJ.dtype == torch.bfloat16 and h_PJ.is_contiguous(), "gate and up are contiguous bfloat16 rows"
    assert h_PJ.shape[1] == 2 * inner and inner % GROUP == 0, "gate and up are whole groups of 32"
    plain = weight_P is None or (weight_P.dtype == torch.float32 and weight_P.shape == (rows,))
    assert plain and (weight_P is None or weight_P.is_contiguous()), "weights are contiguous float32, one a row"
    assert used_1 is None or used_1.dtype == torch.int32, "the number of rows is int32"
    out_PI = h_PJ.new_empty(rows, inner)
    if rows:
        _swiglu_quantise[(triton.cdiv(inner // GROUP, TILE_GROUPS) * triton.cdiv(rows, TILE_ROWS),)](
            h_PJ, weight_P, out_PI, used_1, rows, limit, ROWS=TILE_ROWS, GROUPS=TILE_GROUPS, INNER=inner,
            WEIGHTED=weight_P is not None, COUNTED=used_1 is not None, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out_PI
