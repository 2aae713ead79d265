"""Arithmetic whose bits depend on nothing but the numbers: no neighbours, no batch width, no thread count.

torch's own sigmoid, silu and softplus differ in the last bit between a vector's body and its tail; exp, log1p, sqrt and
division do not, so they are built from those. Sums have a fixed order that a compiled loop can follow exactly.
"""

import torch
from torch import Tensor


def working(x: Tensor) -> Tensor:
    """x in the dtype that elementwise work is done in: float32 for bfloat16, otherwise its own."""
    return x.float() if x.dtype == torch.bfloat16 else x


def tree_sum(x: Tensor) -> Tensor:
    """Sum over the last dim, […, n] → […]: halves are added while n is even, an odd rest from left to right."""
    width = x.shape[-1]
    while width > 1 and width % 2 == 0:
        width //= 2
        x = x[..., :width] + x[..., width:]
    total = x[..., 0]
    for i in range(1, width):
        total = total + x[..., i]
    return total


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def reciprocal_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x²) + eps) over the last dim, kept: […, D] → […, 1].

    torch.rsqrt is two correctly rounded steps; torch.sqrt may come from a vector library and then is not.
    """
    mean = tree_sum(x * x) / x.shape[-1]
    return torch.rsqrt(mean + eps).unsqueeze(-1)
