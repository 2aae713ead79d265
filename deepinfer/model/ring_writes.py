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
    sequence_T = np.repeat(np.arange(len(starts)), ends - starts)
    own = np.flatnonzero(np.arange(len(sequence_T)) >= ends[sequence_T] - ring_slots)
    rows, outer = [own], [step.state_slots[sequence_T[own]]]
    for sequence, boundary, snapshot in [] if step.snapshots is None else step.snapshots.tolist():
        first = int(starts[sequence])
        end = first + int(np.searchsorted(step.positions[first : ends[sequence]], boundary))
        rows.append(np.arange(max(first, end - ring_slots), end))
        outer.append(np.full(len(rows[-1]), num_slots + snapshot))
    rows_T = np.concatenate(rows)
    return RingWrites(
        rows_T=torch.from_numpy(rows_T),
        outer_T=torch.from_numpy(np.concatenate(outer)),
        inner_T=torch.from_numpy(step.positions[rows_T] % ring_slots),
    )
