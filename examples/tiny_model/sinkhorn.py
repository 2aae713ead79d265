"""Doubly stochastic mixing matrices: 20 rounds of normalisation in one kernel, with its backward pass.

Plain autograd would keep 40 intermediate [tokens, 4, 4] tensors per site and launch some 80 kernels. The kernel keeps one
4 × 4 matrix per lane in registers, stores only the divisors of each round, and walks them backwards: for y = x / s with
s = Σx + ε along one axis, dx = (dy - Σ dy·y) / s and x = y·s.
"""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # training on a CPU needs no Triton
    triton = None

EPS = 1e-6
STREAMS = 4
LANES = 128


def sinkhorn_plain(x_MN: Tensor, rounds: int) -> Tensor:
    """x [..., source, destination], positive → columns sum to 1. The first round is columns only."""
    x_MN = x_MN / (x_MN.sum(-2, keepdim=True) + EPS)
    for _ in range(rounds - 1):
        x_MN = x_MN / (x_MN.sum(-1, keepdim=True) + EPS)
        x_MN = x_MN / (x_MN.sum(-2, keepdim=True) + EPS)
    return x_MN


if triton is not None:

    @triton.jit
    def _forward_kernel(  # type: ignore[no-untyped-def]
        x_ptr, y_ptr, sums_ptr, count, ROUNDS: tl.constexpr, LANES: tl.constexpr
    ):
        """sums [2·ROUNDS - 1, 4, count]: the divisors, in the order they were applied."""
        lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
        live = lane < count
        cell = tl.arange(0, 4)
        offsets = lane[:, None, None] * 16 + cell[None, :, None] * 4 + cell[None, None, :]
        mask = live[:, None, None] & (cell[None, :, None] < 4) & (cell[None, None, :] < 4)
        x = tl.load(x_ptr + offsets, mask=mask, other=1.0)
        sum_offsets = cell[None, :] * count + lane[:, None]
        sum_mask = live[:, None] & (cell[None, :] < 4)
        s = tl.sum(x, axis=1) + 1e-6
        tl.store(sums_ptr + sum_offsets, s, mask=sum_mask)
        x = x / s[:, None, :]
        for step in range(ROUNDS - 1):
            s = tl.sum(x, axis=2) + 1e-6
            tl.store(sums_ptr + (2 * step + 1) * 4 * count + sum_offsets, s, mask=sum_mask)
            x = x / s[:, :, None]
            s = tl.sum(x, axis=1) + 1e-6
            tl.store(sums_ptr + (2 * step + 2) * 4 * count + sum_offsets, s, mask=sum_mask)
            x = x / s[:, None, :]
        tl.store(y_ptr + offsets, x, mask=mask)

    @triton.jit
    def _backward_kernel(  # type: ignore[no-untyped-def]
        y_ptr, grad_ptr, sums_ptr, out_ptr, count, ROUNDS: tl.constexpr, LANES: tl.constexpr
    ):
        lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
        live = lane < count
        cell = tl.arange(0, 4)
        offsets = lane[:, None, None] * 16 + cell[None, :, None] * 4 + cell[None, None, :]
        mask = live[:, None, None] & (cell[None, :, None] < 4) & (cell[None, None, :] < 4)
        y = tl.load(y_ptr + offsets, mask=mask, other=0.25)
        g = tl.load(grad_ptr + offsets, mask=mask, other=0.0)
        sum_offsets = cell[None, :] * count + lane[:, None]
        sum_mask = live[:, None] & (cell[None, :] < 4)
        for back in range(ROUNDS - 1):
            step = ROUNDS - 2 - back
            s = tl.load(sums_ptr + (2 * step + 2) * 4 * count + sum_offsets, mask=sum_mask, other=1.0)
            g = (g - tl.sum(g * y, axis=1)[:, None, :]) / s[:, None, :]
            y = y * s[:, None, :]
            s = tl.load(sums_ptr + (2 * step + 1) * 4 * count + sum_offsets, mask=sum_mask, other=1.0)
            g = (g - tl.sum(g * y, axis=2)[:, :, None]) / s[:, :, None]
            y = y * s[:, :, None]
        s = tl.load(sums_ptr + sum_offsets, mask=sum_mask, other=1.0)
        g = (g - tl.sum(g * y, axis=1)[:, None, :]) / s[:, None, :]
        tl.store(out_ptr + offsets, g, mask=mask)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounds: int) -> Tensor:
        x = x.contiguous()
        count = x.numel() // STREAMS**2
        y = torch.empty_like(x)
        sums = torch.empty((2 * rounds - 1, STREAMS, count), device=x.device, dtype=torch.float32)
        _forward_kernel[(triton.cdiv(count, LANES),)](x, y, sums, count, rounds, LANES)
        ctx.save_for_backward(y, sums)
        ctx.rounds = rounds
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        y, sums = ctx.saved_tensors
        out = torch.empty_like(y)
        count = y.numel() // STREAMS**2
        _backward_kernel[(triton.cdiv(count, LANES),)](y, grad.contiguous(), sums, out, count, ctx.rounds, LANES)
        return out, None


def sinkhorn(x_MN: Tensor, rounds: int) -> Tensor:
    """x float32 [..., 4, 4] (source, destination). The kernel on a GPU, plain torch elsewhere; equal to a few 1e-6."""
    if x_MN.is_cuda:
        return _Sinkhorn.apply(x_MN, rounds)
    return sinkhorn_plain(x_MN, rounds)
