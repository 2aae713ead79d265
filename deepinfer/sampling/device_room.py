"""Masks and edits of a step in memory that stays where it is, for steps of all sizes: each sends as much of it as it uses.

Legend: M masks · W words of a mask · E places of edits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import VerifyRows
    from deepinfer.sampling.device_edits import SequenceEdits
    from deepinfer.sampling.device_rows import DeviceSampler

MOST_EDITS, MOST_MASKS = 1 << 20, 1 << 11  # 16 MB, and 33 MB at a vocabulary of 129,280


class FixedRoom:
    """`host` is to be written, and comes into being with its first use."""

    def __init__(self, sampler: DeviceSampler, most_rows: int) -> None:
        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=sampler.device)

        self._tensors = {
            "masks_MW": empty(torch.int32, min(1 + most_rows, MOST_MASKS), sampler.no_masks_MW.shape[1]),
            "edit_ids_E": empty(torch.int32, MOST_EDITS),
            "edit_biases_E": empty(torch.float64, MOST_EDITS),
            "edit_counts_E": empty(torch.int32, MOST_EDITS),
        }
        self._pinned: dict[str, Tensor] = {}

    @property
    def masks_MW(self) -> Tensor:
        return self._tensors["masks_MW"]

    @property
    def edits(self) -> tuple[Tensor, Tensor, Tensor]:
        """ids, biases, counts [E]"""
        return self._tensors["edit_ids_E"], self._tensors["edit_biases_E"], self._tensors["edit_counts_E"]

    def host(self, *names: str) -> dict[str, np.ndarray]:
        for name in names:
            if name not in self._pinned:
                of = self._tensors[name]
                self._pinned[name] = torch.zeros(of.shape, dtype=of.dtype, pin_memory=of.is_cuda)
        return {name: self._pinned[name].numpy() for name in names}

    def send(self, count: int, *names: str) -> None:
        """The first masks or places, in order of the device's current stream."""
        for name in names:
            self._tensors[name][:count].copy_(self._pinned[name][:count], non_blocking=True)

    def clear_biases(self, count: int) -> None:
        """Of the first places, on the device."""
        self._tensors["edit_biases_E"][:count].zero_()

    def takes(self, rows: VerifyRows, edits: Sequence[SequenceEdits]) -> bool:
        """Whether there is room for a step's."""
        num_masks = 1 + sum(len(masks) for masks in rows.masks.values())
        return num_masks <= len(self.masks_MW) and sum(one.most_places for one in edits) <= MOST_EDITS
