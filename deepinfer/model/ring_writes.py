"""Which rows of a step go to a ring, and where: into their own sequence's, and into the snapshots that the step takes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import StepInput


@dataclass(frozen=True)
class RingWrites:
    """Row `rows_T` goes to place `inner_T` of state row `outer_T`; no two go to the same place."""

    rows_T: Tensor
    outer_T: Tensor
    inner_T: Tensor


def ring_writes(step: StepInput, ring_slots: int, num_slots: int) -> RingWrites:
    """The newest rows of every sequence, and for a snapshot at boundary b the newest rows before b.

    Snapshot i is state row `num_slots` + i. Snapshots begin as copies of their slots (ModelCache.bring_states), so these
    rows make them whole. The same call serves every ring of a slot, the draft layers' too.
    """
    starts, ends = step.row_starts[:-1], step.row_starts[1:]
    runs = [(int(slot), int(a), int(b)) for slot, a, b in zip(step.state_slots, starts, ends)]
    if step.snapshots is not None:
        for sequence, boundary, snapshot in step.snapshots.tolist():
            first, end = int(starts[sequence]), int(ends[sequence])
            before = int(np.searchsorted(step.positions[first:end], boundary))
            runs.append((num_slots + snapshot, first, first + before))
    runs = [(outer, max(first, end - ring_slots), end) for outer, first, end in runs]
    rows = np.concatenate([np.arange(first, end) for _, first, end in runs]) if runs else np.zeros(0, dtype=np.int64)
    outer = np.repeat([outer for outer, _, _ in runs], [end - first for _, first, end in runs]).astype(np.int64)
    return RingWrites(
        rows_T=torch.from_numpy(rows),
        outer_T=torch.from_numpy(outer),
        inner_T=torch.from_numpy(step.positions[rows] % ring_slots),
    )
