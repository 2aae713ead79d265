"""From slots and row counts to the arrays of one forward pass.

T rows · S sequences · R sampled rows · G n-gram columns · B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepinfer.engine.sequences import SequenceTable
from deepinfer.interfaces import Request, SampleInput, StepInput


@dataclass(slots=True)
class ScheduledStep:
    """A step on its way: what the executor gets, and what is needed to book its results."""

    step: StepInput
    sample: SampleInput
    slots: np.ndarray  # int64 [S], in row order
    sampled: np.ndarray  # int64 [R]; which of the S sequences each sampled row belongs to
    epochs: np.ndarray  # int64 [S]; of the slots when the step was made
    admitted: list[tuple[int, Request]]  # sequences that got a slot in this step
    num_prefill_rows: int


def decode_step(table: SequenceTable, slots: np.ndarray, admitted: list[tuple[int, Request]]) -> ScheduledStep:
    """One row for every slot: its newest token. The steady state, hence without anything that a chunk would need."""
    everyone = np.arange(len(slots) + 1)
    num_tokens = table.num_tokens[slots]
    positions = num_tokens - 1
    return _flat_step(table, slots, positions, slots, everyone, everyone[:-1], num_tokens, admitted, 0)


def mixed_step(
    table: SequenceTable,
    decode_slots: np.ndarray,
    chunks: list[tuple[int, int]],
    admitted: list[tuple[int, Request]],
) -> ScheduledStep:
    """Decode rows, then `chunks` of (slot, rows): each goes on where the caches of its slot end.

    A chunk that reaches the newest known token has its last row sampled, the others only fill the caches.
    """
    if not chunks:
        return decode_step(table, decode_slots, admitted)
    chunk_slots, chunk_rows = np.array(chunks, dtype=np.int64).T
    slots = np.concatenate([decode_slots, chunk_slots])
    num_rows = np.concatenate([np.ones(len(decode_slots), dtype=np.int64), chunk_rows])
    starts = table.num_computed[slots]
    row_starts = np.zeros(len(slots) + 1, dtype=np.int64)
    np.cumsum(num_rows, out=row_starts[1:])
    positions = np.arange(row_starts[-1]) + np.repeat(starts - row_starts[:-1], num_rows)
    ends = starts + num_rows
    sampled = np.flatnonzero(ends == table.num_tokens[slots])
    row_slots = np.repeat(slots, num_rows)
    return _flat_step(
        table, slots, positions, row_slots, row_starts, sampled, ends[sampled], admitted, int(chunk_rows.sum())
    )


def _flat_step(
    table: SequenceTable,
    slots: np.ndarray,
    positions: np.ndarray,
    row_slots: np.ndarray,
    row_starts: np.ndarray,
    sampled: np.ndarray,
    new_positions: np.ndarray,
    admitted: list[tuple[int, Request]],
    num_prefill_rows: int,
) -> ScheduledStep:
    places = row_slots * table.stride
    places += positions
    places += table.pad
    ngram_ids = table.flat_tokens[places[:, None] - np.arange(table.pad + 1)].astype(np.int64)
    widest = int(table.num_blocks[slots].max())
    step = StepInput(
        token_ids=ngram_ids[:, 0].copy(),
        positions=positions,
        ngram_ids=ngram_ids,
        row_starts=row_starts,
        state_slots=slots,
        block_tables=table.block_tables[:, :widest][slots],
        sample_rows=row_starts[sampled + 1] - 1,
    )
    assert step.token_ids.min() >= 0, "a place without a token was scheduled"
    return ScheduledStep(
        step=step,
        sample=SampleInput(slots=slots[sampled], positions=new_positions),
        slots=slots,
        sampled=sampled,
        epochs=table.epoch[slots],
        admitted=admitted,
        num_prefill_rows=num_prefill_rows,
    )
