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
from deepinfer.arch.routing import busiest_rank
from deepinfer.model.fused.stored_weights import FusedExpertWeights
from deepinfer.model.fused.sublayers import FusedExperts
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.expert_permutation import Permutation

Routing = Literal["balanced", "skewed"]
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
        return busiest_rank(self.ranks, self.experts, self.seed)

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

    def route(self, normed_TD: Tensor) -> Permutation:
        chosen, picks_TX = self.weights.chosen, self.pairs.picks(len(normed_TD))
        weights_TX = _widened(self.choose(normed_TD)[1], picks_TX.shape[1])
        pairs = self.ops.expert_permutation(picks_TX, self.weights.num_experts, weights_TX=weights_TX)
        return pairs._replace(places_TX=pairs.places_TX[:, :chosen].contiguous())


def _widened(weights_TX: Tensor, width: int) -> Tensor:
    """The router's weights again for the pairs that other ranks would send."""
    chosen = weights_TX.shape[1]
    if width == chosen:
        return weights_TX
    return weights_TX.repeat(1, ceil(width / chosen))[:, :width].contiguous()
