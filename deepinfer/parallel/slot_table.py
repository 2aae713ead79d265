"""A placement where a device reads it: the slots of chosen experts in two launches, and at addresses that stay.

Legend: L layers · E experts · K turns · T rows · X chosen experts of a row.
"""

import numpy as np
import torch
from torch import Tensor

from deepinfer.parallel.placement import Placement

TURNS = 16  # rows after which copies of an expert have served once around
NOBODYS = TURNS  # the turn of rows of padding


class SlotTable:
    """The slots that serve each expert of some layers, for rows of every turn."""

    def __init__(self, placement: Placement, device: torch.device) -> None:
        self.placement = placement
        layers = range(len(placement.expert_LP))
        self._slot_LKE = torch.stack([_turns(placement, layer) for layer in layers]).to(device)

    def __call__(self, layer: int, picks_TX: Tensor, turn_T1: Tensor) -> Tensor:
        """int32 [T, X]; `turn_T1` int32: below TURNS, by which an expert's copies take rows in turn, or NOBODYS for -1."""
        at_TX = torch.add(picks_TX, turn_T1, alpha=self.placement.num_experts)
        return self._slot_LKE[layer].view(-1).index_select(0, at_TX.view(-1)).view(picks_TX.shape)

    @property
    def has_copies(self) -> bool:
        """Of any expert; no move of experts changes that."""
        return self.placement.expert_LP.shape[1] > self.placement.num_experts

    def place(self, layer: int, expert_P: np.ndarray) -> None:
        """From the next launch on, rows of `layer` find expert `expert_P[s]` in slot s."""
        self.placement = self.placement.with_row(layer, expert_P)
        self._slot_LKE[layer].copy_(_turns(self.placement, layer))


def turns_by_content(picks_TX: Tensor) -> Tensor:
    """int64 [T, 1] below TURNS, of what a row chose and nothing else: the same copies serve it in whatever company it comes."""
    odd_X = torch.arange(1, 2 * picks_TX.shape[1], 2, device=picks_TX.device)
    mixed_T1 = (picks_TX * odd_X).sum(1, keepdim=True) * 0x9E3779B1
    return (mixed_T1 >> 16) % TURNS


def _turns(placement: Placement, layer: int) -> Tensor:
    """int32 [K, E], NOBODYS the last turn."""
    picks_KE = np.tile(np.arange(placement.num_experts), (TURNS, 1))
    slots_KE = np.full((TURNS + 1, placement.num_experts), -1, dtype=np.int32)
    slots_KE[:TURNS] = placement.slots(layer, picks_KE, np.arange(TURNS))
    return torch.from_numpy(slots_KE)
