"""From slots and row counts to the StepPlan of one step.

S sequences · D decoding · C chunks · R sampled · G n-gram columns · B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.sequences import SequenceTable
from deepinfer.interfaces import Request, StepPlan

_NO_ROWS = np.zeros(0, dtype=np.int64)
_NONE_SAMPLED = np.zeros(0, dtype=bool)


@dataclass(slots=True)
class Admission:
    """A sequence that gets a slot in this step."""

    slot: int
    request: Request
    length_end: int


@dataclass(slots=True)
class ScheduledStep:
    """A step on its way: what the executor gets, and what is needed to book its results."""

    plan: StepPlan
    sampled: np.ndarray  # int64 [R]; which of the S sequences each sampled one is
    epochs: np.ndarray  # int64 [S]; of the slots when the step was made
    admitted: list[Admission] = field(default_factory=list)

    @property
    def sampled_slots(self) -> np.ndarray:
        return self.plan.slots[self.sampled]


def decode_plan(
    slots: np.ndarray, block_tables: np.ndarray, *, num_drafts: int = 0, draft: bool = False, **floors: np.ndarray
) -> StepPlan:
    """A step of running answers alone. `floors`: those of `window_from`, `upper_from` and `write_from` that are not zero."""
    zeros = np.zeros(len(slots), dtype=np.int64)
    return StepPlan(
        slots=slots,
        num_decode=len(slots),
        block_tables=block_tables,
        chunk_starts=_NO_ROWS,
        chunk_rows=_NO_ROWS,
        chunk_tokens=_NO_ROWS,
        chunk_sampled=_NONE_SAMPLED,
        num_drafts=num_drafts,
        draft=draft,
        **{"window_from": zeros, "upper_from": zeros, "write_from": zeros} | floors,
    )


def make_step(
    table: SequenceTable, decode: np.ndarray, chunks: list[tuple[int, int]], admitted: list[Admission]
) -> ScheduledStep:
    """The decoding slots, then `chunks` of (slot, rows): each goes on where the caches of its slot end.

    A chunk that reaches the newest known token is sampled, the others only fill the caches.
    """
    if chunks:
        chunk_slots, chunk_rows = np.array(chunks, dtype=np.int64).T
        slots, starts = np.concatenate([decode, chunk_slots]), table.num_computed[chunk_slots]
        ends = starts + chunk_rows
        chunk_sampled = ends == table.num_tokens[chunk_slots]
        places = [np.arange(first, last) for first, last in zip(starts.tolist(), ends.tolist())]
        tokens = np.concatenate([table.tokens[s, table.pad + at] for s, at in zip(chunk_slots.tolist(), places)])
        sampled = np.concatenate([np.arange(len(decode)), len(decode) + np.flatnonzero(chunk_sampled)])
    else:
        slots, starts, chunk_rows, chunk_sampled, tokens = decode, _NO_ROWS, _NO_ROWS, _NONE_SAMPLED, _NO_ROWS
        sampled = np.arange(len(decode))
    widest = int(table.num_blocks[slots].max())
    plan = StepPlan(
        slots=slots,
        num_decode=len(decode),
        block_tables=table.block_tables[:, :widest][slots],
        chunk_starts=starts,
        chunk_rows=chunk_rows,
        chunk_tokens=tokens.astype(np.int64),
        chunk_sampled=chunk_sampled,
        window_from=table.window_from[slots],
        upper_from=table.upper_from[slots],
        write_from=table.write_from[slots],
    )
    return ScheduledStep(plan, sampled, table.epoch[slots], admitted)
