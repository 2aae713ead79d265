"""Before every step that ranks share, their leaders meet: a few numbers of each, so that all know what runs.

Who has nothing to run learns whether to serve the others, and when all may sleep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from deepinfer.parallel.peers import Peers


class Room(NamedTuple):
    """For how much a step that ranks run together is made, padded: what the rank that has most needs. Devices alone need to
    agree on it, whose buffers have one size on all of them."""

    rows: int = 0  # of the forward pass
    sequences: int = 0  # of the round of drafts at its end


NO_ROOM = Room()


@dataclass(frozen=True, kw_only=True)
class Word:
    """What one leader brings to a meeting."""

    runs: bool  # it has rows of its own in the step
    drafts: bool  # and drafts at its end
    works: bool  # it has requests, whether or not they have rows
    closes: bool = False  # it was told to end
    wake: int = 0  # the newest of the driver's numbered messages that it has seen
    asked: int = 0  # of the balancer of experts
    room: Room = NO_ROOM  # for its own rows


@dataclass(frozen=True, kw_only=True)
class Met:
    """What all brought, the same at every leader."""

    runs: bool  # anybody
    drafts: bool  # anybody
    sleeps: bool  # nobody works, and all have seen the same messages: no meeting until the driver wakes all
    closes: bool  # everybody was told to end
    asked: int = 0  # most of all
    room: Room = NO_ROOM  # for anybody's


class Meeting:
    """Of the leaders of a world. `peers` None: there is one, which is alone with its word."""

    def __init__(self, peers: Peers | None) -> None:
        self._peers = peers

    def __call__(self, word: Word) -> Met:
        """Waits for all. Raises PeerLost."""
        said = (word.runs, word.drafts, word.works, word.closes, word.wake, word.asked, *word.room)
        row = torch.tensor(said, dtype=torch.int64)
        rows = (row[None] if self._peers is None else self._peers.all_gather(row)).tolist()
        runs, drafts, works, closes, wakes, asked, *room = zip(*rows)
        return Met(
            runs=any(runs),
            drafts=any(drafts),
            sleeps=not any(works) and len(set(wakes)) == 1,
            closes=all(closes),
            asked=max(asked),
            room=Room(*map(max, room)),
        )
