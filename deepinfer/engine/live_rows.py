"""Verify rows of the sequences that still live when a step is sampled, and their results in the order of all.

R sampled sequences · E tokens.
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.decode_state import Resolved
from deepinfer.interfaces import Drafts, SampleInput, StepOutput, Verified, VerifyRows


def live_rows(resolved: Resolved, sample: SampleInput) -> tuple[VerifyRows, np.ndarray]:
    """The rows to verify with their masks, and the step's rows whose logits they are, int64."""
    rows, sample_rows = resolved.rows, resolved.step.sample_rows
    if sample.alive is None:
        rows.masks = sample.masks
        return rows, sample_rows
    alive, counts = sample.alive, np.diff(rows.row_starts)
    starts = np.concatenate([[0], np.cumsum(counts[alive])])
    masks = {
        int(number): sample.masks[r] for number, r in enumerate(np.flatnonzero(alive).tolist()) if r in sample.masks
    }
    kept = VerifyRows(rows.slots[alive], rows.positions[alive], starts, rows.drafts[alive], masks)
    return kept, sample_rows[np.repeat(alive, counts)]


def expand(verified: Verified, alive: np.ndarray | None, num_checked: np.ndarray) -> StepOutput:
    """Results of the living as results of all R; the others got no token and have not failed."""
    counts, failed, failures = verified.counts, verified.failed, verified.failures
    if alive is not None:
        places = np.flatnonzero(alive)
        counts, failed = np.zeros(len(alive), dtype=np.int64), np.zeros(len(alive), dtype=bool)
        counts[places], failed[places] = verified.counts, verified.failed
        failures = {int(places[r]): why for r, why in verified.failures.items()}
    return StepOutput(
        token_ids=verified.token_ids,
        counts=counts,
        failed=failed,
        failures=failures,
        logprobs=verified.logprobs,
        num_checked=num_checked if num_checked.any() else None,
    )


def spread_drafts(made: Drafts, places: np.ndarray, number: int) -> Drafts:
    """Drafts of the sequences at `places` as those of all `number`; the others have none."""
    shape = (number, made.token_ids.shape[1])
    drafts = Drafts(np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.float32))
    drafts.token_ids[places], drafts.confidence[places] = made.token_ids, made.confidence
    return drafts


def drafts_of_all(made: Drafts, going: np.ndarray, alive: np.ndarray | None) -> Drafts:
    """Drafts of the live sequences `going` (bool) as those of all that were planned, of which `alive` live (None: all)."""
    if alive is None:
        return spread_drafts(made, np.flatnonzero(going), len(going))
    return spread_drafts(made, np.flatnonzero(alive)[going], len(alive))
