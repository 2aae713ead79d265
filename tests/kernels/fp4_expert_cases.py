"""Random MXFP4 experts and activations, and the bound of their products: shared by two test files."""

import torch
from torch import Tensor

from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.norm import quantise_activation

HIDDEN, INNER, CHOSEN = 5120, 2304, 6
SCALES = (112, 121)  # 2^-15 … 2^-7


def random_experts(experts: int, rows: int, columns: int, device: str, scales: tuple[int, int] = SCALES) -> Fp4Experts:
    """Every code equally likely."""
    codes = torch.empty(experts, rows, columns // 2, dtype=torch.uint8, device=device).random_(0, 256)
    return Fp4Experts(codes, torch.randint(*scales, (experts, rows, columns // 32), dtype=torch.uint8, device=device))


def activations(rows: int, columns: int, device: str) -> Tensor:
    return quantise_activation(torch.randn(rows, columns, device=device)).bfloat16()


def starts_of(counts: list[int], device: str) -> Tensor:
    return torch.tensor([0, *counts], device=device).cumsum(0).int()


def check(out_PN: Tensor, reference_PN: Tensor) -> None:
    """bf16 results of float32 sums: half a bf16 step, and a part of the row's size for the order of the sum."""
    error = out_PN.double() - reference_PN
    assert error.norm() <= 2e-3 * reference_PN.norm()
    size_P1 = reference_PN.square().mean(1, keepdim=True).sqrt()
    assert (error.abs() <= 2.0**-8 * reference_PN.abs() + 2e-4 * size_P1).all()
