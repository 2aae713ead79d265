"""A block pool that keeps what nobody owns for as long as the room is not needed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deepinfer.cache import linked_blocks
from deepinfer.cache.block_pool import IndexPool
from deepinfer.cache.linked_blocks import FREE, IDLE


class CachedBlocks(IndexPool):
    """An IndexPool in which a cached block outlives its owners: it is idle then, and taken when no free one is left, the
    least recently used first. Idle blocks count as free. 17 bytes a block."""

    def __init__(self, size: int, *, on_evicted: Callable[[np.ndarray], None] = lambda ids: None) -> None:
        """`on_evicted(ids)` hears of idle blocks that lose what they cached, before they have a new owner."""
        super().__init__(size)
        self._free = self._free.astype(np.int32)
        self._cached = np.zeros(size, dtype=np.bool_)
        self._older = np.zeros(size + 1, dtype=np.int32)
        self._newer = np.zeros(size + 1, dtype=np.int32)
        self._older[size] = self._newer[size] = size
        self._counts = np.array([size, 0], dtype=np.int64)
        self._on_evicted = on_evicted
        self.num_evicted = 0

    @property
    def num_free(self) -> int:
        return int(self._counts[FREE] + self._counts[IDLE])

    @property
    def num_used(self) -> int:
        return self.size - self.num_free

    @property
    def num_idle(self) -> int:
        """Cached blocks without an owner."""
        return int(self._counts[IDLE])

    @property
    def nbytes(self) -> int:
        arrays = (self._free, self._owners, self._cached, self._older, self._newer)
        return sum(array.nbytes for array in arrays)

    def count_idle(self, ids: np.ndarray) -> int:
        """How many of `ids` have no owner: sharing them takes as many away from `num_free`."""
        return int((self._owners[ids] == 0).sum())

    def allocate(self, count: int) -> np.ndarray:
        assert 0 <= count <= self.num_free, f"{count} asked, {self.num_free} of {self.size} free"
        ids = np.empty(count, dtype=np.int64)
        links = (self._older, self._newer, self._counts)
        num_free = linked_blocks.pop(count, self._owners, self._cached, self._free, *links, ids)
        if num_free < count:
            self.num_evicted += count - num_free
            self._on_evicted(ids[num_free:])
        self.peak_used = max(self.peak_used, self.num_used)
        return ids

    def share(self, ids: np.ndarray) -> None:
        """One more owner for each of `ids` (all different), which are owned or cached."""
        wrong = linked_blocks.pin(ids, self._owners, self._cached, self._older, self._newer, self._counts)
        assert not wrong, "a free id cannot be shared"
        self.peak_used = max(self.peak_used, self.num_used)

    def release(self, ids: np.ndarray) -> np.ndarray:
        """One owner fewer for each of `ids` (all different), in the order of their sequence: its last block is the first to be
        evicted. Returns those that are free now, int64; idle ones are not among them."""
        freed = np.empty(len(ids), dtype=np.int64)
        links = (self._older, self._newer, self._counts)
        count = linked_blocks.unpin(ids, self._owners, self._cached, self._free, *links, freed)
        assert count >= 0, "an id was released more often than it was taken"
        return freed[len(ids) - count :]

    def mark_cached(self, ids: np.ndarray) -> None:
        """These owned blocks hold what later sequences may share."""
        assert (self._owners[ids] > 0).all() and not self._cached[ids].any()
        self._cached[ids] = True

    def unmark(self, ids: np.ndarray) -> np.ndarray:
        """These cached blocks (all different) serve nobody any more. Returns those that are free now."""
        assert self._cached[ids].all()
        freed = ids[self._owners[ids] == 0]
        links = (self._older, self._newer, self._counts)
        linked_blocks.uncache(ids, self._owners, self._cached, self._free, *links)
        return freed
