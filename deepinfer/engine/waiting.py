"""The waiting line: higher priority first, then the order of submission. A preempted sequence keeps its old place in it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from deepinfer.interfaces import Request

NO_SLOT = -1


@dataclass(slots=True, eq=False)
class Entry:
    """A sequence the scheduler knows, from submission to its end."""

    request: Request
    arrival: int
    length_end: int
    stop_ids: list[int]
    slot: int = NO_SLOT
    waiting: bool = False
    lost_tokens: int = 0  # that were in the caches when it was preempted


class WaitingLine:
    """A heap. Entries that left it early (aborted) stay in as gaps until they surface or outnumber the rest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._num_gaps = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_gaps

    def push(self, entry: Entry) -> None:
        assert not entry.waiting
        entry.waiting = True
        heapq.heappush(self._heap, (-entry.request.priority, entry.arrival, entry))

    def first(self) -> Entry | None:
        while self._heap and not self._heap[0][2].waiting:
            heapq.heappop(self._heap)
            self._num_gaps -= 1
        return self._heap[0][2] if self._heap else None

    def next(self, slots_free: int) -> Entry | None:
        """Who may be admitted. Where no slot is free for the first, the first of those that have one: somebody has to end
        before a slot is."""
        entry = self.first()
        if entry is None or slots_free or entry.slot != NO_SLOT:
            return entry
        holders = (item for item in self._heap if item[2].waiting and item[2].slot != NO_SLOT)
        return min(holders, key=lambda item: item[:2], default=(0, 0, None))[2]

    def pop(self) -> Entry:
        entry = self.first()
        assert entry is not None
        heapq.heappop(self._heap)
        entry.waiting = False
        return entry

    def take(self, entry: Entry) -> None:
        """Somebody who was next is admitted, and may come back."""
        if entry is self.first():
            self.pop()
            return
        entry.waiting, self._num_gaps = False, 0
        self._heap = [item for item in self._heap if item[2].waiting]
        heapq.heapify(self._heap)

    def remove(self, entry: Entry) -> None:
        """Somebody leaves for good."""
        assert entry.waiting
        entry.waiting = False
        self._num_gaps += 1
        if self._num_gaps * 2 > len(self._heap):
            self._heap = [item for item in self._heap if item[2].waiting]
            heapq.heapify(self._heap)
            self._num_gaps = 0
