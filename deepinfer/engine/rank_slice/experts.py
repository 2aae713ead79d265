"""The experts of one rank, given as many pairs of a row and an expert as all ranks of its group would send it.

Legend: T rows · X chosen experts of a row · E local experts · D hidden · P pairs.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.fused.stored_weights import FusedExpertWeights
from deepinfer.model.fused.sublayers import FusedExperts
from deepinfer.ops.device import DeviceOps

Routing = Literal["balanced", "skewed"]
ZIPF = 0.5  # exponent of the skewed popularity: expert i of the ranking is chosen as often as i^-ZIPF says
NOBODY = -1


@dataclass
class Pairs:
    """Which local expert each slot of each row goes to, in place of the router's choice among all `experts`.

    Every one of the group's `ranks` has as many rows. Balanced: each expert is chosen as often, so the rank gets as many pairs
    as its own rows make. Skewed: experts are popular by a Zipf law of exponent ZIPF and lie on the ranks in an order drawn with
    a fixed seed; this is the rank that gets most, in every layer, for all ranks wait for it.
    """

    ranks: int
    experts: int
    chosen: int  # of a row
    routing: Routing
    device: torch.device
    seed: int = 0
    _tables: dict[int, Tensor] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Experts of a rank."""
        return self.experts // self.ranks

    @property
    def load(self) -> float:
        """Pairs that the rank gets over those that its own rows make."""
        return round(float(self.popularity().sum() * self.ranks), 9)

    def popularity(self) -> np.ndarray:
        """Share of all pairs that each local expert gets, float64 [E]."""
        if self.routing == "balanced" or self.ranks == 1:
            return np.full(self.held, 1 / self.experts)
        weights = np.arange(1, self.experts + 1, dtype=np.float64) ** -ZIPF
        placed = np.random.default_rng(self.seed).permutation(weights / weights.sum()).reshape(self.ranks, -1)
        chosen: np.ndarray = placed[placed.sum(1).argmax()]
        return chosen

    def counts(self, rows: int) -> np.ndarray:
        """Pairs of each local expert, int64 [E], where every rank has `rows` rows: whole numbers of the right sum."""
        ends = np.cumsum(self.popularity()) * rows * self.chosen * self.ranks
        return np.diff(np.round(ends).astype(np.int64), prepend=0)

    def touched(self, rows: int) -> int:
        """Local experts that get any pair: whose weights a layer reads."""
        return int((self.counts(rows) > 0).sum())

    def picks(self, rows: int) -> Tensor:
        """int32 [T, X' ≥ X], NOBODY where a slot stays empty; the same tensor whenever asked."""
        if rows not in self._tables:
            flat = np.repeat(np.arange(self.held), self.counts(rows))
            flat = np.random.default_rng(self.seed).permutation(flat)
            width = max(self.chosen, ceil(len(flat) / max(rows, 1)))
            table = np.full(rows * width, NOBODY, dtype=np.int32)
            table[: len(flat)] = flat
            self._tables[rows] = torch.from_numpy(table.reshape(rows, width)).to(self.device)
        return self._tables[rows]


class FoldedExperts(FusedExperts):
    """`FusedExperts` of which the routed ones are the rank's: the router chooses, and `pairs` says where that goes."""

    def __init__(self, config: V41Config, ops: DeviceOps, weights: FusedExpertWeights, pairs: Pairs) -> None:
        super().__init__(config, ops, weights)
        self.pairs = pairs

    def __call__(self, normed_TD: Tensor, quantised_TD: Tensor) -> Tensor:
        ops, w, limit = self.ops, self.weights, self.config.swiglu_limit
        logits_TE = ops.bf16_linear(normed_TD, w.gate_ED, self.logits_dtype)
        _, weights_TX = ops.router(logits_TE, w.bias_E, w.chosen, self.config.routed_scaling_factor)
        picks_TX = self.pairs.picks(len(normed_TD))
        pairs = ops.expert_permutation(picks_TX, w.num_experts, weights_TX=_widened(weights_TX, picks_TX.shape[1]))
        act_PI = ops.fp4_experts_up(quantised_TD, pairs.rows_P, pairs.starts_E1, pairs.weights_P, w.w13, limit)
        parts_PD = ops.fp4_grouped_linear(act_PI, None, pairs.starts_E1, w.w2)
        shared_TI = ops.swiglu_quantise(ops.fp8_linear(quantised_TD, w.shared_w13), None, limit)
        places_TX = pairs.places_TX[:, : w.chosen].contiguous()
        return ops.combine(parts_PD, places_TX, ops.fp8_linear(shared_TI, w.shared_w2))


def _widened(weights_TX: Tensor, width: int) -> Tensor:
    """The router's weights again for the pairs that other ranks would send."""
    chosen = weights_TX.shape[1]
    if width == chosen:
        return weights_TX
    return weights_TX.repeat(1, ceil(width / chosen))[:, :width].contiguous()
