"""PyTorch's own kernels as peers: cuBLAS, scaled and grouped products, top-k, sampling.

Legend: T rows · K inputs · N outputs · E experts · P rows sorted by expert · G groups · B sequences · V vocabulary.
"""

from types import ModuleType
from typing import Any

import torch
from peers_call import Call, peer
from peers_layouts import column_major, fp8_blocks, fp8_rows, fp8_tensor, padded_columns
from torch import Tensor

from deepinfer.formats.fp4 import dequantise_fp4_experts
from deepinfer.formats.fp8 import dequantise_fp8_blocks

EXACT = 0.005  # bf16 rounds the answer once
FP8_AGAIN = 0.06  # numbers quantised a second time, in coarser blocks


@peer("torch", tolerance=EXACT)
def cublas_bf16(torch_: ModuleType, x_TK: Tensor, codes_NK: Tensor, scale: Tensor) -> Call:
    """cuBLAS on the weight as bf16 numbers, which hold it exactly: the same product from twice the bytes."""
    weight_KN = dequantise_fp8_blocks(codes_NK, scale, torch.bfloat16).t()
    out_TN = x_TK.new_empty(x_TK.shape[0], weight_KN.shape[1])
    return lambda: torch_.mm(x_TK, weight_KN, out=out_TN)


@peer("torch", tolerance=EXACT)
def cublas_linear(torch_: ModuleType, x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype) -> Call:
    """cuBLAS on a bf16 weight, writing what ours writes: float32 results are twice the bytes of bf16 ones."""
    return lambda: torch_.mm(x_TK, weight_NK.t(), out_dtype=dtype)


@peer("torch", tolerance=0.12)
def scaled_mm_tensor(torch_: ModuleType, x_TK: Tensor, codes_NK: Tensor, scale: Tensor) -> Call:
    """torch._scaled_mm with one scale a tensor: lossy."""
    (x, x_scale), (weight, weight_scale) = fp8_tensor(x_TK), fp8_tensor(dequantise_fp8_blocks(codes_NK, scale))
    return lambda: torch_._scaled_mm(
        x, weight.t(), x_scale, weight_scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


@peer("torch", tolerance=FP8_AGAIN)
def scaled_mm_128(torch_: ModuleType, x_TK: Tensor, codes_NK: Tensor, scale: Tensor) -> Call:
    """torch's scaled product with 1 × 128 groups and 128 × 128 blocks (cuBLASLt): lossy."""
    from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

    (x, x_scale), (weight, weight_scale) = fp8_rows(x_TK), fp8_blocks(dequantise_fp8_blocks(codes_NK, scale))
    x_scale, weight_scale = column_major(x_scale, 1), padded_columns(weight_scale.t())
    kinds = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    plain = SwizzleType.NO_SWIZZLE

    def call() -> Tensor:
        return scaled_mm(
            x, weight.t(), x_scale, kinds[0], weight_scale, kinds[1], plain, plain, output_dtype=torch.bfloat16
        )

    return call


@peer("torch", tolerance=EXACT)
def grouped_mm_bf16(torch_: ModuleType, x_PK: Tensor, counts_E: Tensor, codes: Tensor, scale: Tensor) -> Call:
    """torch._grouped_mm on the experts' weights as bf16 numbers, which hold them exactly: four times the bytes."""
    weight_EKN = bf16_experts(codes, scale).transpose(1, 2)
    ends_E = counts_E.cumsum(0).to(torch.int32).to(x_PK.device)
    return lambda: torch_._grouped_mm(x_PK, weight_EKN, offs=ends_E)


def bf16_experts(codes: Tensor, scale: Tensor) -> Tensor:
    """MXFP4 weights [E, N, K / 2] with scales [E, N, K / 32] as bf16 [E, N, K], expert by expert."""
    whole = torch.empty(*codes.shape[:2], 2 * codes.shape[2], dtype=torch.bfloat16, device=codes.device)
    for out, *expert in zip(whole, codes, scale):
        out.copy_(dequantise_fp4_experts(*expert, torch.bfloat16))
    return whole


@peer("torch", tolerance=EXACT)
def cublas_bmm(torch_: ModuleType, x_TGK: Tensor, weight_GNK: Tensor) -> Call:
    """cuBLAS' batched product of the groups."""
    weight_GKN = weight_GNK.transpose(1, 2)
    return lambda: torch_.bmm(x_TGK.transpose(0, 1), weight_GKN).transpose(0, 1)


def same_choice(got: Any, scores_and_count: tuple[Tensor, int]) -> float:
    """Share of chosen scores that are not the best: ties may fall either way."""
    scores_TJ, count = scores_and_count
    chosen = scores_TJ.gather(1, got.long().clamp(min=0)).sort(dim=1).values
    return float((chosen != scores_TJ.topk(count).values.sort(dim=1).values).double().mean())


@peer("torch", tolerance=0.0, compare=same_choice)
def torch_topk(torch_: ModuleType, scores_TJ: Tensor, count: int) -> Call:
    """torch.topk: sorted by score, ties in any order."""
    return lambda: torch_.topk(scores_TJ, count).indices


def outside_the_allowed(got: Tensor, allowed_BV: Tensor) -> float:
    """Share of sampled tokens that the filters forbid."""
    return float((~allowed_BV.gather(1, got.long().view(-1, 1))).double().mean())


@peer("torch", tolerance=0.0, compare=outside_the_allowed)
def torch_softmax_multinomial(torch_: ModuleType, logits_BV: Tensor, temperature_B: Tensor, *_: Any) -> Call:
    """softmax, then the largest of probability over exponential noise, which is what torch.multinomial does: no filters."""

    def call() -> Tensor:
        probabilities_BV = (logits_BV / temperature_B.unsqueeze(1)).softmax(dim=-1)
        return (probabilities_BV / torch_.empty_like(probabilities_BV).exponential_()).argmax(dim=-1)

    return call


@peer("torch", tolerance=EXACT)
def torch_rms_norm(torch_: ModuleType, x_TD: Tensor, weight_D: Tensor, eps: float) -> Call:
    """torch's rms_norm, bf16 to bf16, no quantisation."""
    return lambda: torch_.nn.functional.rms_norm(x_TD, weight_D.shape, weight_D.to(x_TD.dtype), eps)
