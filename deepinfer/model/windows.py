"""Where each row of a step finds the window keys that it may see.

Legend: T rows · W window. Keys before a row's floor are never looked at: they may be another sequence's, or NaN.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import StepInput

# Of a sequence: more unpack their common window keys once. From three on that is faster on a CPU, a tenth of a step that
# checks five drafts; runs too long for the ring must.
FEW_ROWS = 2


@dataclass(frozen=True)
class RingRows:
    """Rows that read their whole window from the ring, after this step's keys were written to it. `rows` None: all rows."""

    rows_T: Tensor | None
    outer_TW: Tensor
    inner_TW: Tensor
    mask_TW: Tensor


@dataclass(frozen=True)
class Chunk:
    """A run of rows of one sequence: it reads W - 1 older keys first and then slides over them and its own."""

    start: int
    end: int
    outer_W: Tensor
    inner_W: Tensor
    mask_TW: Tensor


@dataclass(frozen=True)
class Windows:
    """Of all rows: those that read the ring one by one, and the runs."""

    ring_rows: RingRows | None
    chunks: list[Chunk]


def windows(step: StepInput, floor_T: np.ndarray, window: int, ring_slots: int) -> Windows:
    """Windows of `window` positions up to each row's own, none before `floor_T`. Floors rise within a sequence."""
    lengths_S = np.diff(step.row_starts)
    long_S = lengths_S > min(ring_slots - window + 1, FEW_ROWS)
    short = np.flatnonzero(~np.repeat(long_S, lengths_S))
    slots_T = np.repeat(step.state_slots, lengths_S)
    return Windows(
        ring_rows=_ring_rows(step.positions, slots_T, floor_T, short, window, ring_slots) if len(short) else None,
        chunks=[_chunk(step, floor_T, int(sequence), window, ring_slots) for sequence in np.flatnonzero(long_S)],
    )


def _ring_rows(
    positions_T: np.ndarray, slots_T: np.ndarray, floor_T: np.ndarray, rows: np.ndarray, window: int, ring_slots: int
) -> RingRows:
    wanted_TW = positions_T[rows, None] - np.arange(window - 1, -1, -1)
    seen_TW = wanted_TW >= floor_T[rows, None]
    return RingRows(
        rows_T=None if len(rows) == len(positions_T) else torch.from_numpy(rows),
        outer_TW=torch.from_numpy(np.where(seen_TW, slots_T[rows, None], -1)),
        inner_TW=torch.from_numpy(wanted_TW % ring_slots),
        mask_TW=torch.from_numpy(seen_TW),
    )


def _chunk(step: StepInput, floor_T: np.ndarray, sequence: int, window: int, ring_slots: int) -> Chunk:
    start, end = (int(x) for x in step.row_starts[sequence : sequence + 2])
    first = int(step.positions[start])
    wanted_W = np.arange(first - window + 1, first)
    wanted_TW = np.arange(first, first + end - start)[:, None] - np.arange(window - 1, -1, -1)
    return Chunk(
        start=start,
        end=end,
        outer_W=torch.from_numpy(np.where(wanted_W >= floor_T[start], step.state_slots[sequence], -1)),
        inner_W=torch.from_numpy(wanted_W % ring_slots),
        mask_TW=torch.from_numpy(wanted_TW >= floor_T[start:end, None]),
    )
