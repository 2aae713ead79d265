"""Numbers handed out and taken back: cache blocks, sequence slots. A free list with reference counts.

A block may have several owners (sequences that share a prefix); it is free again when the last one lets go.
"""

from __future__ import annotations

import numpy as np


class IndexPool:
    """Ids 0 … size - 1. The id freed last is handed out first, so that memory in use stays small and warm."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ValueError(f"a pool of {size} is empty; it needs at least one entry")
        self.size = size
        self._free = np.arange(size - 1, -1, -1, dtype=np.int64)  # a stack: the top is at _num_free - 1
        self._num_free = size
        self._owners = np.zeros(size, dtype=np.int32)
        self.peak_used = 0

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.size - self._num_free

    def owners(self, index: int) -> int:
        return int(self._owners[index])

    def allocate(self, count: int) -> np.ndarray:
        """`count` free ids, int64 [count], each with one owner. The caller has looked at `num_free`."""
        assert 0 <= count <= self._num_free, f"{count} asked, {self._num_free} of {self.size} free"
        rest = self._num_free - count
        ids = self._free[rest : self._num_free][::-1].copy()
        self._num_free = rest
        self._owners[ids] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return ids

    def share(self, ids: np.ndarray) -> None:
        """One more owner for each of `ids`, all in use already and all different."""
        assert (self._owners[ids] > 0).all(), "a free id cannot be shared"
        self._owners[ids] += 1

    def release(self, ids: np.ndarray) -> np.ndarray:
        """One owner fewer for each of `ids` (all different). Returns those that are free now, int64."""
        left = self._owners[ids] - 1
        assert (left >= 0).all(), "an id was released more often than it was taken"
        self._owners[ids] = left
        freed = ids[left == 0]
        self._free[self._num_free : self._num_free + len(freed)] = freed[::-1]
        self._num_free += len(freed)
        return freed
