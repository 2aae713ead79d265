"""Experts on their way between ranks while steps go on: a round of copies begins after one step and ends after the next.

What arrives is kept beside the slots. Once a layer has all that it needs, on all ranks after the same step, slots are
overwritten and rows go by the new placement; until then the old one holds, and nothing that somebody still reads is changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from deepinfer.parallel.eplb.schedule import LayerMoves, Round, SlotCopy, layer_moves, rounds
from deepinfer.parallel.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer.parallel.peers import Peers, Pending


class ExpertSlots(Protocol):
    """The experts of this rank, as an expert dispatch has them."""

    placement: Placement  # of the trunk's layers
    count: Callable[[int, Tensor], None] | None  # told of the chosen experts of this rank's rows, layer by layer

    def unit(self, layer: int, slot: int) -> Sequence[Tensor]:
        """All tensors of the expert in this rank's slot `slot`, to be read and overwritten in place: alike in all slots."""

    def place(self, layer: int, expert_P: np.ndarray) -> None:
        """From the next forward pass on rows go by this row of the placement."""


class Mover:
    """Brings `slots` to the placement `then`, which all ranks of a group know. Each calls `step` after the same steps."""

    def __init__(self, peers: Peers, slots: ExpertSlots, then: Placement, budget_bytes: int) -> None:
        """`budget_bytes`: most that a rank sends, and most that it receives, in a step; one expert at least."""
        self._peers, self._slots, self._then = peers, slots, then
        self._size = then.slots_per_rank
        moves = layer_moves(slots.placement, then)
        self.unit_bytes = sum(tensor.nbytes for tensor in slots.unit(0, 0))
        self._rounds = deque(rounds(moves, self._size, max(1, budget_bytes // self.unit_bytes)))
        self._travelling: tuple[Round, Pending] | None = None
        self._arrived: dict[tuple[int, int], Tensor] = {}  # (layer, slot) → bytes of an expert
        self.num_left = sum(len(layer.remote) for layer in moves)  # experts that still travel between ranks
        self.num_moved = 0

    @property
    def moved_bytes(self) -> int:
        return self.num_moved * self.unit_bytes

    @property
    def done(self) -> bool:
        return not self._rounds and self._travelling is None

    def step(self) -> None:
        """Take in the round that travelled during the last step, and send off the next."""
        if self._travelling is not None:
            this_round, rows = self._travelling
            self._take(this_round, rows())
            self._travelling = None
        if self._rounds:
            next_round = self._rounds.popleft()
            self._travelling = next_round, self._send(next_round)

    def _send(self, next_round: Round) -> Pending:
        """Begin the exchange of a round's experts, sorted by who gets them, then as the round has them."""
        rank, size = self._peers.rank, self._peers.size
        mine = [copy for copy in next_round.copies if copy.source // self._size == rank]
        rows = [_packed(self._slots.unit(copy.layer, copy.source % self._size)) for copy in self._by_target(mine)]
        like = self._slots.unit(0, 0)[0]
        empty = torch.empty(0, self.unit_bytes, dtype=torch.uint8, device=like.device)
        send, receive = [0] * size, [0] * size
        for copy in next_round.copies:
            source, target = copy.source // self._size, copy.target // self._size
            send[target] += source == rank
            receive[source] += target == rank
        if not next_round.copies:
            return lambda: empty
        return self._peers.exchange(torch.stack(rows) if rows else empty, send, receive)

    def _by_target(self, copies: list[SlotCopy]) -> list[SlotCopy]:
        return sorted(copies, key=lambda copy: copy.target // self._size)  # stable: the round's order within a rank

    def _take(self, this_round: Round, rows: Tensor) -> None:
        rank = self._peers.rank
        mine = [copy for copy in this_round.copies if copy.target // self._size == rank]
        for copy, row in zip(sorted(mine, key=lambda copy: copy.source // self._size), rows, strict=True):
            self._arrived[copy.layer, copy.target] = row
        self.num_left -= len(this_round.copies)
        self.num_moved += len(this_round.copies)
        if this_round.completes is not None:
            self._switch(this_round.completes)

    def _switch(self, layer: LayerMoves) -> None:
        """Read what this rank copies within itself, then overwrite slots, then let rows go by the new placement."""
        rank = self._peers.rank
        new = {copy.target: self._arrived.pop((layer.layer, copy.target)) for copy in self._mine(layer.remote, rank)}
        for copy in self._mine(layer.local, rank):
            new[copy.target] = _packed(self._slots.unit(layer.layer, copy.source % self._size))
        for target, row in new.items():
            _unpack(row, self._slots.unit(layer.layer, target % self._size))
        self._slots.place(layer.layer, self._then.expert_LP[layer.layer])

    def _mine(self, copies: Sequence[SlotCopy], rank: int) -> list[SlotCopy]:
        return [copy for copy in copies if copy.target // self._size == rank]


def _packed(unit: Sequence[Tensor]) -> Tensor:
    """uint8: the bytes of all tensors, one after the other, in memory of their own."""
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in unit])


def _unpack(row: Tensor, unit: Sequence[Tensor]) -> None:
    at = 0
    for tensor in unit:
        part = row[at : at + tensor.nbytes].clone()  # memory of its own, aligned for every dtype
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
        at += tensor.nbytes
