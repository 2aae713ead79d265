"""States of sequences copied on the device, whole or some window keys of all layers at once.

Whole ones come from snapshots before a pass and go into snapshots behind it. Behind a pass a state also holds rows at and
beyond a snapshot's boundary, which the host need not know of: no row from the boundary on reads a key there that it did not
write itself, and a pass has never more rows of a sequence than its ring takes beside the window before the boundary. So the
copy is right wherever the sequence really came to the boundary; any other one is dropped by whoever asked for it.
Everything here launches only.

Legend: M states, or rows of rings, that are copied · [A, L, B, R] rings of all states and layers.
"""

import math

import numpy as np
import torch

from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.glue import to_device


def restore_states(cache: ModelCache, restores: np.ndarray) -> None:
    """`restores` [M, 2]: slot, snapshot. Before the pass."""
    if len(restores):
        _copy(cache, cache.num_slots + restores[:, 1], restores[:, 0])


def save_states(cache: ModelCache, slots: np.ndarray, snapshots: np.ndarray) -> None:
    """`snapshots` [M, 3]: sequence (its slot is in `slots`), boundary, snapshot. Behind all that writes rings."""
    if len(snapshots):
        _copy(cache, slots[snapshots[:, 0]], cache.num_slots + snapshots[:, 2])


def _copy(cache: ModelCache, from_M: np.ndarray, to_M: np.ndarray) -> None:
    sent = to_device({"from": from_M, "to": to_M}, cache.state.device)
    words = cache.state.view(torch.int64)  # fewer than bytes, and a state is a multiple of them
    words.index_copy_(0, sent["to"].long(), words.index_select(0, sent["from"]))


class WindowRows:
    """Window keys of the first `num_layers` layers by row number of a ring, moved within the cache in all layers at once."""

    def __init__(self, cache: ModelCache, num_layers: int) -> None:
        layout = cache.layout
        tails, entry, ring = len(layout.tail_sources) * layout.tail_bytes, layout.window_entry_bytes, layout.ring_slots
        size = math.gcd(tails, entry, layout.padded_state_bytes, torch.int64.itemsize)
        numbers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        shape = len(cache.state), num_layers, ring, entry // size
        strides = layout.padded_state_bytes // size, ring * entry // size, entry // size, 1
        self._ring_slots, self._device = ring, cache.state.device
        self._rings_ALBR = cache.state.view(-1).view(numbers).as_strided(shape, strides, tails // size)

    def move(self, from_M: np.ndarray, to_M: np.ndarray) -> None:
        """No two share a target, and none is another's source."""
        if not len(from_M):
            return
        parts = {"from": from_M // self._ring_slots, "from_place": from_M % self._ring_slots}
        parts |= {"to": to_M // self._ring_slots, "to_place": to_M % self._ring_slots}
        sent = to_device(parts, self._device)
        moved_MLR = self._rings_ALBR[sent["from"], :, sent["from_place"]]
        self._rings_ALBR[sent["to"], :, sent["to_place"]] = moved_MLR
