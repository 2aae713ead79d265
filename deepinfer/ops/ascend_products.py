"""Products on Ascend 950 by torch_npu: dense FP8, bfloat16, and sorted rows through FP4 experts.

Written against torch-npu 2.13.0; not run here. The formats are the vendor's MX formats, which are those of the release: E4M3
codes or E2M1 pairs (even column in the low nibble) with one E8M0 byte for 32 columns. Activations come as bfloat16 numbers
already on the FP8 grid; coding them again gives the same numbers.

Legend: T rows · K inputs · N outputs · E experts · P sorted rows · G scale groups, K / 32 · B packed bytes, K / 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.formats import quantise_fp8_rows
from deepinfer.ops.ascend_npu import BY_32, npu, paired_scales
from deepinfer.ops.deepseek_layout import rows_of_blocks
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight


@dataclass(frozen=True)
class Turned:
    """A weight as the products read it, inputs before outputs: views [K, N] or [E, B, N] of codes stored outputs first, and
    of their paired scales [G / 2, N, 2] or [E, G / 2, N, 2]."""

    codes: Tensor
    scales: Tensor


def prepare_dense(weight: Fp8Weight) -> Turned:
    """A stored FP8 weight with its block scales written out row by row; once, at load."""
    scale_NG = rows_of_blocks(weight.scale, weight.codes_NK.shape[0])
    return Turned(weight.codes_NK.contiguous().t(), paired_scales(scale_NG).transpose(0, 1))


def prepare_experts(weight: Fp4Experts) -> Turned:
    """Stored FP4 experts in the chip's own tile order (FRACTAL_NZ); once, at load."""
    torch_npu, scales = npu(), paired_scales(weight.scale_ENG).transpose(1, 2)
    codes, scales, _, _ = torch_npu.npu_weight_quant_preprocess(
        weight.codes_ENB.contiguous().transpose(1, 2),
        scales,
        x_dtype=torch.float8_e4m3fn,
        weight_dtype=torch_npu.float4_e2m1fn_x2,
        weight_scale_dtype=torch_npu.float8_e8m0fnu,
        x_scale_dtype=torch_npu.float8_e8m0fnu,
        k_group_size=BY_32[2],
    )
    return Turned(codes, scales)


def fp8_linear(x_TK: Tensor, weight: Turned) -> Tensor:
    """x · weightᵀ [T, N] in bfloat16; x on the FP8 grid."""
    torch_npu, (codes_TK, scale_TG) = npu(), quantise_fp8_rows(x_TK)
    out_TN: Tensor = torch_npu.npu_quant_matmul(
        codes_TK,
        weight.codes,
        weight.scales,
        pertoken_scale=paired_scales(scale_TG),
        output_dtype=torch.bfloat16,
        scale_dtype=torch_npu.float8_e8m0fnu,
        pertoken_scale_dtype=torch_npu.float8_e8m0fnu,
        group_sizes=list(BY_32),
    )
    return out_TN


def linear(x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x · weightᵀ [T, N] of bfloat16 operands by torch's own product; float32 results where asked for, of float32 operands."""
    assert x_TK.dtype == weight_NK.dtype == torch.bfloat16, "operands are bfloat16"
    return x_TK.to(dtype) @ weight_NK.to(dtype).t()


def fp4_grouped_linear(x_PK: Tensor, starts_E1: Tensor, weight: Turned) -> Tensor:
    """[P, N]: every sorted row through its own expert, in bfloat16; x on the FP8 grid."""
    torch_npu, (codes_PK, scale_PG) = npu(), quantise_fp8_rows(x_PK)
    (out_PN,) = torch_npu.npu_grouped_matmul(
        [codes_PK],
        [weight.codes],
        antiquant_scale=[weight.scales],
        per_token_scale=[paired_scales(scale_PG)],
        group_list=starts_E1[1:].long(),  # where each expert's rows end
        split_item=2,  # one tensor out
        group_type=0,  # experts divide the rows
        group_list_type=0,
        output_dtype=torch.bfloat16,
        weight_dtype=torch_npu.float4_e2m1fn_x2,
        per_token_scale_dtype=torch_npu.float8_e8m0fnu,
    )
    return out_PN
