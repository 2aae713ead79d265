"""What a step brought, put into the table: tokens at the ends of their sequences, and which of those are at an end.

R sampled sequences · E tokens · K drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepinfer.engine.sequences import NO_ID, SequenceTable
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.interfaces import StepOutput


@dataclass(slots=True)
class Committed:
    """Results of a step that count, one entry for each sampled sequence that still holds its place."""

    slots: np.ndarray  # int64
    rows: np.ndarray  # int64; which of the R sequences of the output
    firsts: np.ndarray  # int64; index of its first token in the output's token_ids
    counts: np.ndarray  # int64; its tokens up to its end; drafts that were accepted behind a stop id do not count
    failed: np.ndarray  # bool: after its tokens comes none
    stopped: np.ndarray  # bool: its last token is a stop id of the sequence
    full: np.ndarray  # bool: the sequence has all its tokens

    def drafts(self, output: StepOutput) -> tuple[list[int], list[int]] | None:
        """Of each sequence, how many drafts were checked and how many of them were right; None where none were checked."""
        if output.num_checked is None:
            return None
        checked = output.num_checked[self.rows]
        accepted = np.where(checked > 0, output.counts[self.rows] - ~output.failed[self.rows], 0)
        return checked.tolist(), accepted.tolist()


def book(table: SequenceTable, scheduled: ScheduledStep, output: StepOutput) -> Committed:
    """Append the tokens of a step to its sequences. Results of sequences that lost their place meanwhile are dropped whole."""
    slots, counts, failed = scheduled.sampled_slots, output.counts, output.failed
    assert len(counts) == len(failed) == len(slots), "the executor must answer sequence for sequence"
    assert counts.sum() == len(output.token_ids), "every token belongs to a sequence"
    rows, firsts, token_ids = np.arange(len(slots)), np.cumsum(counts) - counts, output.token_ids
    alive = table.epoch[slots] == scheduled.epochs[scheduled.sampled]
    if not alive.all():
        rows, token_ids = np.flatnonzero(alive), token_ids[np.repeat(alive, counts)]
        slots, counts, failed, firsts = slots[rows], counts[rows], failed[rows], firsts[rows]
    lengths = table.num_tokens[slots]
    owners, offsets = np.arange(len(slots)), np.zeros(len(slots), dtype=np.int64)
    slots_E, positions_E = slots, lengths
    if not (counts == 1).all():
        owners = np.repeat(owners, counts)
        offsets = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        slots_E, positions_E = slots[owners], lengths[owners] + offsets
    stops = (table.stop_ids[slots_E] == token_ids[:, None]).any(axis=1)
    stops &= positions_E >= table.stop_from[slots_E]
    stopped = np.zeros(len(slots), dtype=bool)
    if stops.any():
        counts, stopped = _cut(counts, stopped, owners[stops], offsets[stops])
        kept = offsets < counts[owners]
        slots_E, positions_E, token_ids = slots_E[kept], positions_E[kept], token_ids[kept]
        failed = failed & ~stopped
    table.flat_tokens[slots_E * table.stride + (positions_E + table.pad)] = token_ids
    lengths = lengths + counts
    table.num_tokens[slots] = lengths
    table.num_computed[slots] = lengths - 1
    table.pending[slots] -= 1
    if output.drafts is not None:
        table.remember(slots, output.drafts.token_ids[rows], output.drafts.confidence[rows])
    else:
        table.drafts[slots] = NO_ID
    return Committed(slots, rows, firsts, counts, failed, stopped, ~failed & (lengths >= table.length_end[slots]))


def _cut(
    counts: np.ndarray, stopped: np.ndarray, owners: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Counts up to and including each owner's first stop."""
    counts = counts.copy()
    counts[owners[::-1]] = offsets[::-1] + 1
    stopped[owners] = True
    return counts, stopped
