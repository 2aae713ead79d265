"""What the engine counts, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from deepinfer.cache.prefix_cache import PrefixCache
    from deepinfer.engine.booking import Committed
    from deepinfer.engine.scheduler import Scheduler
    from deepinfer.engine.step_plan import ScheduledStep
    from deepinfer.interfaces import StepOutput


@dataclass(slots=True)
class ExecutorTimes:
    """Seconds inside the executor so far: the model's forward pass and logits, the sampler with its verifier, the drafter.

    `idle_s`: that a device with a queue had nothing to do inside of steps, and before those that were submitted ahead.
    """

    model_s: float = 0.0
    sampling_s: float = 0.0
    drafting_s: float = 0.0
    idle_s: float = 0.0


@dataclass(slots=True)
class Totals:
    """Running totals of the loop."""

    draft_depth: int = 0
    steps: int = 0
    steps_ahead: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    sampled_tokens: int = 0
    submitted: int = 0
    refused: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    step_s: float = 0.0
    verify_rounds: int = 0
    checked_at: np.ndarray = field(init=False)  # int64 [K]
    accepted_at: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.checked_at = np.zeros(self.draft_depth, dtype=np.int64)
        self.accepted_at = np.zeros(self.draft_depth, dtype=np.int64)

    def add_step(self, scheduled: ScheduledStep, output: StepOutput, committed: Committed) -> None:
        self.steps += 1
        self.prefill_rows += scheduled.plan.num_chunk_rows
        self.decode_rows += output.num_rows - scheduled.plan.num_chunk_rows
        self.sampled_tokens += int(committed.counts.sum())
        if output.num_checked is None:
            return
        rows = committed.rows[output.num_checked[committed.rows] > 0]
        if not len(rows):
            return
        accepted = output.counts[rows] - ~output.failed[rows]
        self.verify_rounds += len(rows)
        depth = self.draft_depth
        self.checked_at += np.bincount(output.num_checked[rows], minlength=depth + 1)[::-1].cumsum()[::-1][1:]
        self.accepted_at += np.bincount(accepted, minlength=depth + 1)[::-1].cumsum()[::-1][1:]


@dataclass(slots=True)
class SchedulerCounts:
    """Running totals of what the scheduler did."""

    admitted: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    dropped_results: int = 0  # of sequences that lost their place while a step of theirs was in flight
    lost_steps: int = 0  # for which the device's memory did not suffice


class PrefixStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of the prefix cache. Requests and tokens count when they are admitted for the first time; totals except where "now"."""

    queries: int
    hits: int  # requests of whose prompts something was not computed
    query_tokens: int
    saved_tokens: int  # of query_tokens, not computed
    cached_blocks: int  # now; owned ones and idle ones
    idle_blocks: int  # now; they count as free
    evicted_blocks: int
    duplicate_blocks: int  # computed by two sequences at the same time
    snapshots: int  # now
    evicted_snapshots: int
    lost_snapshots: int  # wanted when all were in use


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the engine was built, and its state now. Times are seconds.

    `step_s` = `model_s` + `sampling_s` + `drafting_s` + `host_s` at async_depth 0: the last is scheduling, booking and
    everything else on the host. At depth 1 they overlap, and `host_s` is what the loop spent beyond the device's work.
    `steps_ahead` were submitted while the step before was in flight.
    `decode_rows` are rows of running answers, drafts among them; rows computed again after a preemption are among
    `prefill_rows`. `sampled_tokens` are those that entered a sequence; where a stop string ends an answer inside a step's
    tokens, its caller gets fewer. Of the drafts checked at a depth (1 first), `accepted_at` were accepted with all before them.
    """

    steps: int
    steps_ahead: int
    prefill_rows: int
    decode_rows: int
    sampled_tokens: int
    submitted: int
    admitted: int
    refused: int
    preemptions: int
    recomputed_tokens: int
    dropped_results: int
    lost_steps: int
    finished: dict[str, int]
    waiting: int
    compiling: int
    prefilling: int
    decoding: int
    blocks_used: int
    blocks_peak: int
    blocks_total: int
    slots_used: int
    slots_total: int
    verify_rounds: int
    checked_at: list[int]
    accepted_at: list[int]
    step_s: float
    model_s: float
    sampling_s: float
    drafting_s: float
    host_s: float
    prefix: PrefixStats | None = None  # where prefixes are kept

    @property
    def accepted_length(self) -> float | None:
        """Mean tokens of a round with drafts, the bonus token included; None where nothing was checked."""
        return 1 + sum(self.accepted_at) / self.verify_rounds if self.verify_rounds else None


_COUNTED = ("steps", "steps_ahead", "prefill_rows", "decode_rows", "sampled_tokens")


def engine_stats(totals: Totals, scheduler: Scheduler, times: ExecutorTimes, *, compiling: int) -> EngineStats:
    """The counters of an engine's parts as one record."""
    return EngineStats(
        **{name: getattr(totals, name) for name in _COUNTED},
        submitted=totals.submitted,
        refused=totals.refused,
        finished=dict(totals.finished),
        admitted=scheduler.counts.admitted,
        preemptions=scheduler.counts.preemptions,
        recomputed_tokens=scheduler.counts.recomputed_tokens,
        dropped_results=scheduler.counts.dropped_results,
        lost_steps=scheduler.counts.lost_steps,
        waiting=len(scheduler.line),
        compiling=compiling,
        prefilling=scheduler.num_prefilling,
        decoding=scheduler.num_decoding,
        blocks_used=scheduler.blocks.num_used,
        blocks_peak=scheduler.blocks.peak_used,
        blocks_total=scheduler.blocks.size,
        slots_used=scheduler.slots.num_used,
        slots_total=scheduler.slots.size,
        verify_rounds=totals.verify_rounds,
        checked_at=totals.checked_at.tolist(),
        accepted_at=totals.accepted_at.tolist(),
        step_s=totals.step_s,
        model_s=times.model_s,
        sampling_s=times.sampling_s,
        drafting_s=times.drafting_s,
        host_s=totals.step_s - times.model_s - times.sampling_s - times.drafting_s,
        prefix=None if scheduler.prefix is None else prefix_stats(scheduler.prefix.cache),
    )


def prefix_stats(cache: PrefixCache) -> PrefixStats:
    counts = cache.counts
    return PrefixStats(
        queries=counts.queries,
        hits=counts.hits,
        query_tokens=counts.query_tokens,
        saved_tokens=counts.saved_tokens,
        cached_blocks=cache.index.num_cached,
        idle_blocks=cache.blocks.num_idle,
        evicted_blocks=cache.blocks.num_evicted,
        duplicate_blocks=counts.duplicate_blocks,
        snapshots=cache.snapshots.num_kept,
        evicted_snapshots=cache.snapshots.num_evicted,
        lost_snapshots=counts.lost_snapshots,
    )
