"""Grouped product of MXFP4 experts as stored, in plain Triton: any GPU, and the interpreter. One block shape for every count.

On Hopper cuda_fp4_grouped_linear computes the same from re-laid weights, several times faster.

Legend: T tokens · P sorted rows · E experts · K inputs · N outputs · R rows and C outputs of a tile · B columns of a step ·
H B / 2 bytes · G B / 32 scales.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import PLAIN, any_power_value, as_bf16, e2m1_values
from torch import Tensor

from deepinfer.ops.fp4_experts import Fp4Experts

# measured on an H200, as a middle between few rows and many
TILE_ROWS, TILE_OUTPUTS, STEP, WARPS, STAGES = 64, 128, 64, 4, 3


@triton.jit
def _tile_of(starts_ptr, tile, num_experts, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """Expert, first sorted row and end of a tile; tiles are counted through all experts. num_experts: there is no such tile."""
    expert_E = tl.arange(0, EXPERTS)
    start_E = tl.load(starts_ptr + expert_E, mask=expert_E < num_experts, other=0)
    end_E = tl.load(starts_ptr + expert_E + 1, mask=expert_E < num_experts, other=0)
    tiles_E = (end_E - start_E + ROWS - 1) // ROWS
    last_E = tl.cumsum(tiles_E, 0)
    expert = tl.sum((last_E <= tile).to(tl.int32), 0)
    mine_E = expert_E == expert
    before = tl.sum(tl.where(mine_E, last_E - tiles_E, 0), 0)
    first = tl.sum(tl.where(mine_E, start_E, 0), 0) + (tile - before) * ROWS
    return expert, first, tl.sum(tl.where(mine_E, end_E, 0), 0)


@triton.jit
def _weight_tile(codes_CH, scale_CG, C: tl.constexpr, B: tl.constexpr):
    """float32 [C, B]; exact in bfloat16 too."""
    low_CH, high_CH = e2m1_values(codes_CH & 15), e2m1_values(codes_CH >> 4)
    values_CG32 = tl.reshape(tl.join(low_CH, high_CH), (C, B // 32, 32))
    return tl.reshape(values_CG32 * any_power_value(scale_CG)[:, :, None], (C, B))


@triton.jit
def _product(
    x_ptr, rows_ptr, starts_ptr, codes_ptr, scale_ptr, out_ptr, num_experts, K, N,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    expert, first, end = _tile_of(starts_ptr, tl.program_id(1), num_experts, EXPERTS, R)
    if expert < num_experts:
        row_R, out_C = first + tl.arange(0, R), tl.program_id(0) * C + tl.arange(0, C)
        there_R1, real_C1 = (row_R < end)[:, None], (out_C < N)[:, None]
        source_R = tl.load(rows_ptr + row_R, mask=row_R < end, other=0) if ROWS else row_R
        weight_C = expert.to(tl.int64) * N + out_C
        column_B, byte_H, scale_G = tl.arange(0, B), tl.arange(0, B // 2), tl.arange(0, B // 32)
        x_RB = x_ptr + source_R.to(tl.int64)[:, None] * K + column_B[None, :]
        codes_CH = codes_ptr + weight_C[:, None] * (K // 2) + byte_H[None, :]
        scale_CG = scale_ptr + weight_C[:, None] * (K // 32) + scale_G[None, :]
        total_RC = tl.zeros((R, C), tl.float32)
        for k in range(0, K, B):
            codes = tl.load(codes_CH + k // 2, mask=real_C1 & (byte_H < (K - k) // 2)[None, :], other=0).to(tl.int32)
            scale = tl.load(scale_CG + k // 32, mask=real_C1 & (scale_G < (K - k) // 32)[None, :], other=0).to(tl.int32)
            x = tl.load(x_RB + k, mask=there_R1 & (column_B < K - k)[None, :], other=0.0)
            weight_BC = tl.trans(_weight_tile(codes, scale, C, B))
            if PLAIN:  # the interpreter takes bfloat16 operands for integers
                total_RC = tl.dot(x.to(tl.float32), weight_BC, total_RC)
            else:
                total_RC = tl.dot(x, weight_BC.to(tl.bfloat16), total_RC)
        tl.store(
            out_ptr + row_R.to(tl.int64)[:, None] * N + out_C[None, :],
            as_bf16(total_RC),
            mask=there_R1 & (out_C < N)[None, :],
        )


def fp4_grouped_linear(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: Fp4Experts) -> Tensor:
    """out[p] = x[rows[p]] · weightᵀ of p's expert, bfloat16 [P, N]; without rows x is already sorted.

    Rows from starts[E] on are not written. The launch reads no count on the host.
    """
    assert isinstance(weight, Fp4Experts), (
        f"the Triton product of MXFP4 experts was given {type(weight).__name__}; it reads codes and scales as stored: give "
        "Fp4Experts, or untile_experts(weight)"
    )
    (experts, outputs, half), columns = weight.codes_ENB.shape, x_TK.shape[1]
    assert x_TK.dtype == torch.bfloat16 and x_TK.is_contiguous(), "x is contiguous bfloat16"
    assert columns == 2 * half and columns % 32 == 0, f"x has the {2 * half} columns of the weight, groups of 32"
    assert weight.codes_ENB.is_contiguous() and weight.scale_ENG.is_contiguous(), "codes and scales are contiguous"
    assert rows_P is None or (rows_P.dtype == torch.int32 and rows_P.is_contiguous()), "rows are contiguous int32"
    assert starts_E1.dtype == torch.int32 and starts_E1.shape == (experts + 1,), (
        "int32 starts: one an expert, and the end"
    )
    num_rows = x_TK.shape[0] if rows_P is None else rows_P.shape[0]
    out_PN = x_TK.new_empty(num_rows, outputs)
    if num_rows:
        grid = (
            triton.cdiv(outputs, TILE_OUTPUTS),
            num_rows // TILE_ROWS + min(experts, num_rows),
        )  # as many tiles as there may be
        _product[grid](
            x_TK, rows_P, starts_E1, weight.codes_ENB.view(torch.uint8), weight.scale_ENG, out_PN, experts, columns, outputs,
            EXPERTS=triton.next_power_of_2(experts), ROWS=rows_P is not None, R=TILE_ROWS, C=TILE_OUTPUTS, B=STEP,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out_PN
