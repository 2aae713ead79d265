"""Which expert lies in which slot: slots of a layer are numbered through all ranks of an expert group, each rank has as many.

Legend: L layers · P slots of all ranks · E experts · X chosen experts of a row · T rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Placement:
    """`expert_LP` int64: the expert in every slot; every expert of a layer lies in one slot at least, perhaps in several."""

    expert_LP: np.ndarray
    num_experts: int
    num_ranks: int
    count_LE: np.ndarray = field(init=False)  # slots of each expert
    slot_LEC: np.ndarray = field(init=False)  # they, rising; the first again where there are fewer than C

    def __post_init__(self) -> None:
        layers, slots = self.expert_LP.shape
        assert slots % self.num_ranks == 0, "all ranks have as many slots"
        count_LE = np.stack([np.bincount(row, minlength=self.num_experts) for row in self.expert_LP])
        assert count_LE.shape[1] == self.num_experts and count_LE.min() > 0, "every expert lies somewhere"
        order_LP = np.argsort(self.expert_LP, axis=1, kind="stable")
        first_LE = np.cumsum(count_LE, axis=1) - count_LE
        copy_C = np.arange(count_LE.max())
        at_LEC = first_LE[..., None] + np.where(copy_C < count_LE[..., None], copy_C, 0)
        rows_L11 = np.arange(layers)[:, None, None]
        object.__setattr__(self, "count_LE", count_LE)
        object.__setattr__(self, "slot_LEC", order_LP[rows_L11, at_LEC])

    @classmethod
    def initial(cls, num_layers: int, num_experts: int, num_ranks: int, redundant: int = 0) -> Placement:
        """Experts in order, then copies from the first expert on."""
        row_P = np.arange(num_experts + redundant) % num_experts
        return cls(np.tile(row_P, (num_layers, 1)), num_experts, num_ranks)

    def with_row(self, layer: int, expert_P: np.ndarray) -> Placement:
        """The same but for one layer."""
        expert_LP = self.expert_LP.copy()
        expert_LP[layer] = expert_P
        return Placement(expert_LP, self.num_experts, self.num_ranks)

    @property
    def slots_per_rank(self) -> int:
        return self.expert_LP.shape[1] // self.num_ranks

    def slots(self, layer: int, picks_TX: np.ndarray, turn_T: np.ndarray) -> np.ndarray:
        """The slot [T, X] that serves each chosen expert: copies take rows in turn, which `turn_T` int64 says."""
        turn_TX = turn_T[:, None] % self.count_LE[layer, picks_TX]
        return self.slot_LEC[layer, picks_TX, turn_TX]

    def experts_of(self, layer: int, rank: int) -> np.ndarray:
        """The experts in the slots of a rank, in order."""
        size = self.slots_per_rank
        return self.expert_LP[layer, rank * size : (rank + 1) * size]


def turns_by_content(picks_TX: np.ndarray) -> np.ndarray:
    """int64 [T], as if drawn, from what a row chose and nothing else: the same copies serve it in whatever company it comes."""
    turn_T = np.zeros(len(picks_TX), dtype=np.uint64)
    for picks_T in picks_TX.T.astype(np.uint64):
        turn_T = (turn_T ^ picks_T) * _MIXED
        turn_T ^= turn_T >> _HALF
    return (turn_T >> np.uint64(1)).astype(np.int64)


_MIXED, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # odd, its bits as if drawn: 2^64 by the golden ratio
