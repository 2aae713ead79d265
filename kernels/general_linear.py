"""Products with weights of any width, in plain Triton: FP8 weights expanded to bfloat16 once at load, and bfloat16 ones.

For models whose widths the kernels of large shapes refuse. A tile of 16 rows meets 32 outputs in one chain over all columns,
whatever the number of rows, so a row's bits depend on that row alone. e4m3 · 2^e is a bfloat16 number, so nothing is lost.

Legend: T rows · G groups · K inputs of a group · N outputs of all groups · R rows, C outputs, B columns of a tile.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import PLAIN
from deepinfer.kernels.triton_formats import as_bf16
from torch import Tensor

from deepinfer.ops.fp8_linear import Fp8Weight

TILE_ROWS, TILE_OUTPUTS, STEP, WARPS, STAGES = 16, 32, 64, 2, 3


@dataclass(frozen=True)
class ExpandedWeight:
    """The numbers of an FP8 weight as bfloat16 [N, K]."""

    numbers_NK: Tensor


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _general_linear(
    x_ptr, weight_ptr, out_ptr, num_rows, row_stride, group_stride, K, N, OUTPUTS,
    R: tl.constexpr, C: tl.constexpr, B: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    group, tiles = tl.program_id(2), tl.program_id(0)
    row_R, inner_C, column_B = tl.program_id(1) * R + tl.arange(0, R), tiles * C + tl.arange(0, C), tl.arange(0, B)
    there_R1, there_C1 = (row_R < num_rows)[:, None], (inner_C < OUTPUTS)[:, None]
    output_C = group * OUTPUTS + inner_C
    x_RB = x_ptr + row_R.to(tl.int64)[:, None] * row_stride + group * group_stride + column_B[None, :]
    weight_CB = weight_ptr + output_C.to(tl.int64)[:, None] * K + column_B[None, :]
    total_RC = tl.zeros((R, C), tl.float32)
    for k in range(0, K, B):
        inside_1B = (column_B < K - k)[None, :]
        x = tl.load(x_RB + k, mask=there_R1 & inside_1B, other=0.0)
        weight = tl.load(weight_CB + k, mask=there_C1 & inside_1B, other=0.0)
        if PLAIN:  # the interpreter takes bfloat16 operands for integers
            total_RC = tl.dot(x.to(tl.float32), tl.trans(weight.to(tl.float32)), total_RC)
        else:
            total_RC = tl.dot(x, tl.trans(weight), total_RC)
    out_RC = out_ptr + row_R.to(tl.int64)[:, None] * N + output_C[None, :]
    total_RC = as_bf16(total_RC) if BF16 else total_RC
    tl.store(out_RC, total_RC, mask=there_R1 & (inner_C < OUTPUTS)[None, :])


def prepare_fp8_weight(weight: Fp8Weight) -> ExpandedWeight:
    """Twice the bytes, exactly the numbers."""
    return ExpandedWeight(weight.numbers(torch.bfloat16).contiguous())


def fp8_linear(x_TK: Tensor, weight: ExpandedWeight, invariant: bool = True) -> Tensor:
    """x · weightᵀ bfloat16 [T, N] of x bfloat16 [T, K] (any, not only the FP8 grid); always as `invariant` asks."""
    return _product(x_TK.unsqueeze(1), _numbers(weight, "fp8_linear"), torch.bfloat16)


def fp8_grouped_linear(x_TGK: Tensor, weight: ExpandedWeight, invariant: bool = True) -> Tensor:
    """Block-diagonal product bfloat16 [T, N] of x bfloat16 [T, G, K]; rows g · N / G … of the weight meet group g."""
    return _product(x_TGK, _numbers(weight, "fp8_grouped_linear"), torch.bfloat16)


def bf16_linear(x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype) -> Tensor:
    """x · weightᵀ [T, N] as bfloat16 or float32 `dtype`; x and weight bfloat16."""
    assert dtype in (torch.bfloat16, torch.float32), f"bf16_linear was asked for {dtype}: bfloat16 or float32"
    return _product(x_TK.unsqueeze(1), weight_NK, dtype)


def _numbers(weight: object, asking: str) -> Tensor:
    assert isinstance(weight, ExpandedWeight), (
        f"{asking} was given a {type(weight).__name__}; it multiplies expanded numbers: prepare the weight once, at load, by "
        "prepare_fp8_weight of the same operations"
    )
    return weight.numbers_NK


def _product(x_TGK: Tensor, weight_NK: Tensor, dtype: torch.dtype) -> Tensor:
    rows, groups, inputs = x_TGK.shape
    outputs = weight_NK.shape[0]
    assert x_TGK.dtype == weight_NK.dtype == torch.bfloat16, "x and weight are bfloat16"
    assert x_TGK.stride(2) == 1 and weight_NK.is_contiguous(), "rows of x and of the weight are adjacent numbers"
    assert weight_NK.shape[1] == inputs and outputs % groups == 0, (
        f"x has {groups} groups of {inputs} columns and the weight is {tuple(weight_NK.shape)}: one K, whole groups of outputs"
    )
    out_TN = x_TGK.new_empty(rows, outputs, dtype=dtype)
    if rows:
        each = outputs // groups
        grid = (triton.cdiv(each, TILE_OUTPUTS), triton.cdiv(rows, TILE_ROWS), groups)
        _general_linear[grid](
            x_TGK, weight_NK, out_TN, rows, x_TGK.stride(0), x_TGK.stride(1), inputs, outputs, each,
            R=TILE_ROWS, C=TILE_OUTPUTS, B=STEP, BF16=dtype == torch.bfloat16, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out_TN
