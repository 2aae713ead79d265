"""Slots whose weights say which expert they are of, for tests of what moves between ranks that are threads."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from thread_peers import ThreadPeers
from torch import Tensor

from deepinfer.parallel.peers import Pending
from deepinfer.parallel.placement import Placement

UNIT_BYTES = 24 + 5 + 4


class FakeSlots:
    """An `ExpertSlots`: an expert is a matrix, odd bytes and a scale, all filled with its number and its layer's."""

    def __init__(self, placement: Placement, rank: int) -> None:
        self.placement, self.rank = placement, rank
        self.count: Callable[[int, Tensor], None] | None = None
        self.units = [
            [unit_of(layer, expert) for expert in placement.experts_of(layer, rank)]
            for layer in range(len(placement.expert_LP))
        ]

    def unit(self, layer: int, slot: int) -> Sequence[Tensor]:
        return self.units[layer][slot]

    def place(self, layer: int, expert_P: np.ndarray) -> None:
        self.placement = self.placement.with_row(layer, expert_P)

    def check(self) -> None:
        """Every slot holds what the placement says."""
        for layer, units in enumerate(self.units):
            for expert, unit in zip(self.placement.experts_of(layer, self.rank), units, strict=True):
                for found, expected in zip(unit, unit_of(layer, expert), strict=True):
                    assert torch.equal(found, expected), f"layer {layer}, expert {expert} of rank {self.rank}"


def unit_of(layer: int, expert: int) -> tuple[Tensor, ...]:
    matrix = torch.full((3, 4), float(100 * layer + expert), dtype=torch.bfloat16).T
    return matrix, torch.full((5,), expert, dtype=torch.uint8), torch.tensor(layer + expert / 256, dtype=torch.float32)


class CountedPeers:
    """Peers that remember how many rows of each exchange this rank sent to others, and how many it got."""

    def __init__(self, peers: ThreadPeers) -> None:
        self._peers, self.rank, self.size = peers, peers.rank, peers.size
        self.rows: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._peers, name)

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Pending:
        assert send[self.rank] == receive[self.rank] == 0, "what a rank has itself does not travel"
        self.rows.append((sum(send), sum(receive)))
        return self._peers.exchange(rows, send, receive)


def shuffled(seed: int, layers: int, experts: int, ranks: int, redundant: int) -> Placement:
    """A placement at random; one rank may hold an expert twice."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.permutation(np.concatenate([np.arange(experts), rng.integers(0, experts, redundant)]))
        for _ in range(layers)
    ]
    return Placement(np.array(rows), experts, ranks)
