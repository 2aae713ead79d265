"""Where each row of a step finds the window keys that it may see.

Legend: T rows here · W window · L leading rows. Keys before a row's floor are never looked at: they may be another sequence's,
or NaN.
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
    """A run of rows of one sequence: it reads older keys first and then slides over them and its own.

    Of the W - 1 keys before it the newest L may be other ranks' in the same step: `lead` says where they are among the keys
    that ranks share. The others are read from the ring.
    """

    start: int
    end: int
    outer_W: Tensor
    inner_W: Tensor
    lead: slice
    mask_TW: Tensor


@dataclass(frozen=True)
class Windows:
    """Of all rows here: those that read the ring one by one, and the runs."""

    ring_rows: RingRows | None
    chunks: list[Chunk]


def windows(
    step: StepInput,
    floor_T: np.ndarray,
    window: int,
    ring_slots: int,
    here: np.ndarray | None = None,
    shared: np.ndarray | None = None,
) -> Windows:
    """Windows of `window` positions up to each row's own, none before `floor_T`. Floors rise within a sequence.

    `here`: the step's rows that are on this rank; None: all. `shared`: of which rows every rank gets the keys.
    """
    lengths_S = np.diff(step.row_starts)
    long_S = lengths_S > min(ring_slots - window + 1, FEW_ROWS)
    sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
    rows_T = np.arange(len(sequence_T)) if here is None else here
    sequence_T = sequence_T[rows_T]
    short = np.flatnonzero(~long_S[sequence_T])
    mine = step.positions[rows_T], step.state_slots[sequence_T], floor_T[rows_T]
    chunks = []
    for start, end in runs(rows_T, sequence_T) if long_S.any() else []:
        if long_S[sequence_T[start]]:
            run = slice(start, end), int(rows_T[start]), int(sequence_T[start])
            chunks.append(_chunk(step, floor_T, *run, shared, window, ring_slots))
    return Windows(_ring_rows(*mine, short, window, ring_slots) if len(short) else None, chunks)


def runs(rows_T: np.ndarray, sequence_T: np.ndarray) -> list[tuple[int, int]]:
    """Where adjacent rows of one sequence begin and end."""
    breaks = np.flatnonzero((np.diff(rows_T) != 1) | (np.diff(sequence_T) != 0)) + 1
    return list(zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows_T)])) if len(rows_T) else []


def shared_rows(step: StepInput, owner_T: np.ndarray, written: np.ndarray, window: int) -> np.ndarray:
    """Which rows' keys every rank gets: those `written` to rings, and the `window` - 1 before each border between ranks."""
    first_T = np.repeat(step.row_starts[:-1], np.diff(step.row_starts))  # of each row's sequence
    borders = np.flatnonzero(np.diff(owner_T)) + 1
    borders = borders[borders > first_T[borders]]
    marks = np.zeros(len(owner_T) + 1, dtype=np.int64)
    np.add.at(marks, np.maximum(borders - window + 1, first_T[borders]), 1)
    np.add.at(marks, borders, -1)
    wanted_T = np.cumsum(marks[:-1]) > 0
    wanted_T[written] = True
    return np.flatnonzero(wanted_T)


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


def _chunk(
    step: StepInput,
    floor_T: np.ndarray,
    here: slice,
    row: int,
    sequence: int,
    shared: np.ndarray | None,
    window: int,
    ring_slots: int,
) -> Chunk:
    """`here`: the run among this rank's rows; `row`: its first among the step's."""
    num_rows, first = here.stop - here.start, int(step.positions[row])
    num_lead = min(row - int(step.row_starts[sequence]), window - 1)
    lead = 0 if shared is None else int(np.searchsorted(shared, row - num_lead))
    wanted_W = np.arange(first - window + 1, first - num_lead)
    wanted_TW = np.arange(first, first + num_rows)[:, None] - np.arange(window - 1, -1, -1)
    return Chunk(
        start=here.start,
        end=here.stop,
        outer_W=torch.from_numpy(np.where(wanted_W >= floor_T[row], step.state_slots[sequence], -1)),
        inner_W=torch.from_numpy(wanted_W % ring_slots),
        lead=slice(lead, lead + num_lead),
        mask_TW=torch.from_numpy(wanted_TW >= floor_T[row : row + num_rows, None]),
    )
