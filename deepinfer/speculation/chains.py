"""How many drafts each slot has in the round that is being drafted: drafts are chosen in order, and the first -1 ends them."""

from __future__ import annotations

import numpy as np


class Chains:
    """N slots."""

    def __init__(self, num_slots: int) -> None:
        self._length_N = np.zeros(num_slots, np.int64)

    def open(self, slots: np.ndarray, number: int) -> np.ndarray:
        """Indices of the sequences that may get draft `number`: all of them for 0, else those that have the one before it.

        Until `extend` says otherwise they get none.
        """
        if number == 0:
            self._length_N[slots] = 0
        return np.flatnonzero(self._length_N[slots] == number)

    def extend(self, slots: np.ndarray) -> None:
        """These sequences have one draft more."""
        self._length_N[slots] += 1
