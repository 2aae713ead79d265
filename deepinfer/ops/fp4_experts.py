"""Routed experts as stored: MXFP4 weights, rows sorted by expert.

A sorted row is one (token, slot) pair; rows of one expert are adjacent, experts in ascending order.

Legend: T tokens · X experts chosen by a token · P sorted rows, T · X · E experts here · E1 E + 1 · K inputs · N outputs ·
B packed bytes, K / 2 · G groups, K / 32 · D hidden · I inner · J gate and up, 2 I.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepinfer.formats import dequantise_fp4_experts
from deepinfer.ops.arithmetic import working
from deepinfer.ops.expert_permutation import combine, expert_permutation
from deepinfer.ops.experts import swiglu
from deepinfer.ops.norm import quantise_activation

SWIGLU_LIMIT = 10.0


@dataclass(frozen=True)
class Fp4Experts:
    """Weights [N, K] of experts: codes uint8 [E, N, K / 2], even column in the low nibble; E8M0 bytes uint8 [E, N, K / 32]."""

    codes_ENB: Tensor
    scale_ENG: Tensor

    def __getitem__(self, experts: slice) -> "Fp4Experts":
        """Some of the experts: a view."""
        return Fp4Experts(self.codes_ENB[experts], self.scale_ENG[experts])

    def dequantised(self, expert: int, dtype: torch.dtype) -> Tensor:
        """One expert's weight [N, K]: exact in bfloat16, float32 and float64."""
        return dequantise_fp4_experts(self.codes_ENB[expert], self.scale_ENG[expert], dtype)


def fp4_grouped_linear(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: Fp4Experts) -> Tensor:
    """out[p] = x[rows[p]] · weightᵀ of p's expert, [P, N] in x's dtype; without rows x is already sorted.

    x lies on the FP8 grid, so that x and the weights are exact in bfloat16. Sums are float32 (float64 for float64 rows).
    """
    x_PK = x_TK if rows_P is None else x_TK[rows_P.long()]
    out_PN = x_TK.new_empty(x_PK.shape[0], weight.codes_ENB.shape[1])
    starts = starts_E1.tolist()
    for expert, (start, end) in enumerate(pairwise(starts)):
        if start < end:
            x_RK = working(x_PK[start:end])
            out_PN[start:end] = (x_RK @ weight.dequantised(expert, x_RK.dtype).t()).to(x_TK.dtype)
    return out_PN


def fp4_experts_up(
    x_TK: Tensor,
    rows_P: Tensor | None,
    starts_E1: Tensor,
    weights_P: Tensor,
    w13: Fp4Experts,
    limit: float = SWIGLU_LIMIT,
) -> Tensor:
    """The input of w2, [P, I] on the FP8 grid: quantised silu(gate) · up · routing weight, gate and up clamped."""
    h_PJ = fp4_grouped_linear(x_TK, rows_P, starts_E1, w13)
    return quantise_activation(swiglu(h_PJ, weights_P, limit))


def fp4_experts(
    x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor, w13: Fp4Experts, w2: Fp4Experts, limit: float = SWIGLU_LIMIT
) -> Tensor:
    """Σ over slots of weight · expert(pick)(x), [T, D], slots from first to last, summed in float32.

    x lies on the FP8 grid. The routing weight multiplies before the quantiser, and so before w2.
    """
    pairs = expert_permutation(picks_TX, w13.codes_ENB.shape[0], weights_TX=weights_TX)
    assert pairs.weights_P is not None
    act_PI = fp4_experts_up(x_TD, pairs.rows_P, pairs.starts_E1, pairs.weights_P, w13, limit)
    return combine(fp4_grouped_linear(act_PI, None, pairs.starts_E1, w2), pairs.places_TX, None)
