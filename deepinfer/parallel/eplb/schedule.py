"""From one placement to another as copies of slots, and in which steps they travel. Every rank computes the same.

Legend: P slots of all ranks, numbered through them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer.parallel.placement import Placement


@dataclass(frozen=True)
class SlotCopy:
    """What slot `target` of a layer will hold is in slot `source` now."""

    layer: int
    source: int
    target: int


@dataclass(frozen=True)
class LayerMoves:
    layer: int
    local: tuple[SlotCopy, ...]  # both slots on one rank
    remote: tuple[SlotCopy, ...]


@dataclass(frozen=True)
class Round:
    """What travels during one step, and the layer of which then everything is there."""

    copies: tuple[SlotCopy, ...]
    completes: LayerMoves | None


def layer_moves(now: Placement, then: Placement) -> list[LayerMoves]:
    """The moves of every layer that changes. A rank takes what it has itself; else whoever of the holders has sent least."""
    return [
        _moves(layer, now.expert_LP[layer], then.expert_LP[layer], now.slots_per_rank)
        for layer in range(len(now.expert_LP))
        if not np.array_equal(now.expert_LP[layer], then.expert_LP[layer])
    ]


def _moves(layer: int, now_P: np.ndarray, then_P: np.ndarray, size: int) -> LayerMoves:
    holders: dict[int, list[int]] = {}
    for slot, expert in enumerate(now_P.tolist()):
        holders.setdefault(expert, []).append(slot)
    local, remote, sent = [], [], [0] * (len(now_P) // size)
    changed = np.flatnonzero(now_P != then_P).tolist()
    for target in sorted(changed, key=lambda slot: (slot % size, slot // size)):  # ranks take turns at receiving
        sources = holders[int(then_P[target])]
        here = [source for source in sources if source // size == target // size]
        if here:
            local.append(SlotCopy(layer, here[0], target))
            continue
        source = min(sources, key=lambda slot: (sent[slot // size], slot))
        sent[source // size] += 1
        remote.append(SlotCopy(layer, source, target))
    return LayerMoves(layer, tuple(local), tuple(remote))


def rounds(moves: Sequence[LayerMoves], size: int, most: int) -> list[Round]:
    """In which step each copy travels: one layer after the other, and no rank sends or receives more than `most` experts in a
    step. So what waits for its layer is never more than a rank's slots of one layer, `size`."""
    assert most >= 1, "a step takes one expert at least"
    planned: list[Round] = []
    for layer in moves:
        waiting = list(layer.remote)
        while waiting:
            copies = _within(waiting, size, most)
            waiting = [copy for copy in waiting if copy not in copies]
            planned.append(Round(copies, None if waiting else layer))
        if not layer.remote:
            planned.append(Round((), layer))
    return planned


def _within(waiting: Sequence[SlotCopy], size: int, most: int) -> tuple[SlotCopy, ...]:
    """As many of the waiting copies as one step may take, the first ones first."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    taken = []
    for copy in waiting:
        source, target = copy.source // size, copy.target // size
        if sent[source] < most and received[target] < most:
            sent[source] += 1
            received[target] += 1
            taken.append(copy)
    return tuple(taken)
