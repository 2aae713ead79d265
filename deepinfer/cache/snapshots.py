"""Copies of a sequence's window rings and tails at the end of a block, so that a cached prefix can be gone on from there.

A snapshot is *reserved* when a step is planned that will write it, and *kept* for its block once that step is through and the
sequence really got there; else it is dropped. Kept ones leave with their block, or when room is needed, the least recently
used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

NONE = -1


class SnapshotPool:
    """Snapshots 0 … size - 1, and which block each is for. A size of 0 keeps none."""

    def __init__(self, size: int, num_blocks: int, on_freed: Callable[[int], None] = lambda snapshot: None) -> None:
        """`on_freed(snapshot)` hears of every one that nobody may read any more, before it is reserved anew."""
        assert size >= 0
        self.size, self.on_freed = size, on_freed
        self._of_block = np.full(num_blocks, NONE, dtype=np.int32)
        self._block_of = np.full(size, NONE, dtype=np.int64)
        self._pins = np.zeros(size, dtype=np.int32)
        self._free = list(range(size - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and not pinned, the least recently used first
        self.num_evicted = 0

    @property
    def num_kept(self) -> int:
        return int((self._block_of != NONE).sum())

    @property
    def num_unused(self) -> int:
        """Neither kept, reserved nor pinned."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        return self._of_block.nbytes

    def reserve(self) -> int | None:
        """A snapshot for a step to write; None where all are in use."""
        if self._free:
            return self._free.pop()
        if not self._idle:
            return None
        snapshot = next(iter(self._idle))
        self.num_evicted += 1
        self._unbind(snapshot)
        return self._free.pop()

    def keep(self, snapshot: int, block: int) -> None:
        """A reserved snapshot was written for the end of `block`, which has none yet."""
        assert self._block_of[snapshot] == NONE and self._of_block[block] == NONE
        self._block_of[snapshot], self._of_block[block] = block, snapshot
        self._idle[snapshot] = None

    def drop(self, snapshot: int) -> None:
        """A reserved snapshot was not written, or is not wanted."""
        assert self._block_of[snapshot] == NONE
        self._free_one(snapshot)

    def of(self, block: int) -> int | None:
        """The snapshot that is kept for the end of `block`."""
        snapshot = int(self._of_block[block])
        return None if snapshot == NONE else snapshot

    def deepest(self, blocks: np.ndarray) -> tuple[int, int | None]:
        """Of a run of blocks: how many end at the last one with a snapshot, and that snapshot; (0, None) where none has."""
        has = np.flatnonzero(self._of_block[blocks] != NONE)
        return (int(has[-1]) + 1, int(self._of_block[blocks[has[-1]]])) if len(has) else (0, None)

    def pin(self, snapshot: int) -> None:
        """A kept one is about to be read; it stays until `unpin`."""
        self._idle.pop(snapshot, None)
        self._pins[snapshot] += 1

    def unpin(self, snapshot: int) -> None:
        self._pins[snapshot] -= 1
        assert self._pins[snapshot] >= 0
        if self._pins[snapshot]:
            return
        if self._block_of[snapshot] == NONE:
            self._free_one(snapshot)
        else:
            self._idle[snapshot] = None

    def demote(self, snapshot: int, block: int) -> None:
        """The next to give way, if it is still kept for `block`: a later one of the same sequence serves better."""
        if self._block_of[snapshot] == block and snapshot in self._idle:
            self._idle.move_to_end(snapshot, last=False)

    def forget(self, blocks: np.ndarray) -> None:
        """These blocks are no longer cached, and their snapshots worthless."""
        for snapshot in self._of_block[blocks][self._of_block[blocks] != NONE].tolist():
            self._unbind(snapshot)

    def _unbind(self, snapshot: int) -> None:
        self._of_block[self._block_of[snapshot]] = NONE
        self._block_of[snapshot] = NONE
        if not self._pins[snapshot]:
            del self._idle[snapshot]
            self._free_one(snapshot)

    def _free_one(self, snapshot: int) -> None:
        self.on_freed(snapshot)
        self._free.append(snapshot)
