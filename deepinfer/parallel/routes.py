"""Which rows of a layer go to which rank, worked out without a loop over rows.

A row that several experts of one rank were chosen for travels once. Both ends number things alike: N rows by rank, then by
their order at home; of each its experts there in the order of the router's slots, P (row, slot) pairs in all.

Legend: T rows at home · X chosen experts of a row · R ranks.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pairs:
    """(row, router slot) pairs of N rows, row by row."""

    row_P: np.ndarray  # int64, into the N rows
    pick_P: np.ndarray  # int64: which of the X router slots
    counts_R: list[int]

    @classmethod
    def of(cls, slot_NX: np.ndarray, rank_N: np.ndarray, num_ranks: int) -> "Pairs":
        """Of slots where -1 says that the expert is elsewhere; `rank_N`, rising, is where each row goes or came from."""
        row_P, pick_P = np.nonzero(slot_NX >= 0)
        return cls(row_P, pick_P, np.bincount(rank_N[row_P], minlength=num_ranks).tolist())


@dataclass(frozen=True)
class Route:
    """Where the T rows of one layer go."""

    row_N: np.ndarray  # int64, into the T rows
    rank_N: np.ndarray  # int64, rising
    slot_NX: np.ndarray  # int64: slots of that rank, counted from its first; -1 where the expert is elsewhere
    counts_R: list[int]  # rows to each rank

    @classmethod
    def of(cls, slots_TX: np.ndarray, slots_per_rank: int, num_ranks: int) -> "Route":
        """`slots_TX` int64: numbered through all ranks."""
        goes_RT = np.zeros((num_ranks, len(slots_TX)), dtype=bool)
        goes_RT[slots_TX // slots_per_rank, np.arange(len(slots_TX))[:, None]] = True
        rank_N, row_N = np.nonzero(goes_RT)
        slot_NX = slots_TX[row_N] - rank_N[:, None] * slots_per_rank
        slot_NX[(slot_NX < 0) | (slot_NX >= slots_per_rank)] = -1
        return cls(row_N, rank_N, slot_NX, np.count_nonzero(goes_RT, axis=1).tolist())

    def pairs(self) -> Pairs:
        return Pairs.of(self.slot_NX, self.rank_N, len(self.counts_R))

    def places(self, pairs: Pairs) -> np.ndarray:
        """int64 [T, X]: where each (row, router slot) lies among the P pairs; every one of them is there."""
        chosen = self.slot_NX.shape[1]
        place_TX = np.empty(len(pairs.row_P), dtype=np.int64)
        place_TX[self.row_N[pairs.row_P] * chosen + pairs.pick_P] = np.arange(len(pairs.row_P))
        return place_TX.reshape(-1, chosen)
