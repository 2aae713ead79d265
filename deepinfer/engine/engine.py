"""The loop: one step is schedule → submit → sample → collect → commit, and the events that come of it.

Everything a request can do wrong is found at `submit`, so that a step only ever fails a sequence for what the model gave it.
Ends that show in tokens (length, end-of-sequence and stop ids) are found here; stop *strings* are found by the output layer,
which then calls `finish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.flat_step import ScheduledStep
from deepinfer.engine.limits import EngineLimits, RequestRefused, check_prompt, max_total_tokens
from deepinfer.engine.prompt_progress import PromptProgress
from deepinfer.engine.scheduler import Committed, Scheduler
from deepinfer.engine.seeds import SeedSource, sequence_key
from deepinfer.engine.stats import EngineStats, ExecutorTimes, Totals
from deepinfer.engine.watchdog import Watchdog
from deepinfer.interfaces import Executor, FinishReason, Request, SamplingParams, StepOutput
from deepinfer.sampling.params import ParamsError, validate


class TimedExecutor(Executor, Protocol):
    """An executor that says where its time went."""

    times: ExecutorTimes
    failures: dict[int, str]  # why rows of the last collected step failed

    def prepare(self, params: SamplingParams) -> None:
        """Build what sampling with these valid parameters needs; raises ParamsError. `admit` cannot fail afterwards."""

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        """Fill freed blocks and the state of a freed slot with NaN bytes, so that a stale read shows."""


class Engine:
    """Runs sequences on one executor. One thread at a time may call it."""

    def __init__(
        self,
        executor: TimedExecutor,
        limits: EngineLimits,
        *,
        seed_entropy: int | None = None,
        poison_freed: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`seed_entropy` makes the seeds of requests without one repeatable. `poison_freed` is for tests."""
        self.limits = limits
        self.executor = executor
        self.scheduler = Scheduler(limits, on_freed=executor.poison) if poison_freed else Scheduler(limits)
        self._seeds = SeedSource(seed_entropy)
        self._clock = clock
        self._totals = Totals()
        self._pending: list[TokenEvent] = []  # ends that no step brings: aborts
        self._prompt_progress = PromptProgress()
        self._next_id = 0
        prefill_steps = -(-limits.max_model_len // min(limits.max_prefill_tokens, limits.max_num_batched_tokens))
        self._watchdog = Watchdog(prefill_steps, limits.watchdog_s, clock)

    def submit(self, prompt_ids: np.ndarray, params: SamplingParams, *, priority: int = 0) -> list[int]:
        """Queue one prompt; returns the ids of its `params.n` sequences, answer 0 first.

        Higher `priority` is served first and preempted last. Raises RequestRefused (a ValueError) with numbers where the
        request can never be served: bad ids, too long for the model or for the cache. See `limits` for how answers are cut.
        Raises ParamsError (a ValueError too) with all that is wrong with `params`.
        """
        try:
            prompt = check_prompt(prompt_ids, self.limits.vocab_size)
            validate(params, self.limits.vocab_size, self.limits.max_model_len, len(prompt))
            if params.logit_bias:  # the caller's dict, which may change while the request waits
                params = msgspec.structs.replace(params, logit_bias=dict(params.logit_bias))
            length_end = max_total_tokens(len(prompt), params, self.limits)
            self.executor.prepare(params)
        except (RequestRefused, ParamsError):
            self._totals.refused += 1
            raise
        stop_ids = list(params.stop_token_ids) + ([] if params.ignore_eos else list(self.limits.eos_token_ids))
        seed = self._seeds.draw() if params.seed is None else params.seed
        request_ids = list(range(self._next_id, self._next_id + params.n))
        self._next_id += params.n
        for n_index, request_id in enumerate(request_ids):
            request = Request(
                request_id=request_id,
                prompt_ids=prompt,
                params=params,
                seed=sequence_key(seed, n_index),
                priority=priority,
                arrival_s=self._clock(),
            )
            self.scheduler.add(request, length_end, stop_ids)
            if params.prompt_logprobs is not None:
                self._prompt_progress.expect(request_id)
        self._totals.submitted += params.n
        return request_ids

    def abort(self, request_id: int) -> bool:
        """End a sequence at any moment of its life; the next step's events say so. False where it has ended already."""
        if not self.finish(request_id, "abort"):
            return False
        self._pending.append(TokenEvent(request_id, [], finish_reason="abort"))
        return True

    def finish(self, request_id: int, reason: FinishReason = "stop") -> bool:
        """End a sequence without an event, for a caller who knows: it has found a stop string. False where it has ended."""
        if not self.scheduler.holds(request_id):
            return False
        self._end({request_id: reason})
        return True

    @property
    def unfinished(self) -> int:
        """Sequences that have not ended: waiting, running and preempted ones."""
        return self.scheduler.unfinished

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to say."""
        return bool(self._pending) or self.unfinished > 0

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it brought, at most one event for each sequence and step."""
        started_s = self._clock()
        events, self._pending = self._pending, []
        scheduled = self.scheduler.schedule() if self.unfinished else None
        if scheduled is not None:
            output = self._execute(scheduled)
            events += self._commit(scheduled, output)
        elif self.unfinished:
            self._watchdog.no_token(rows=0, state=self._state())
        self._totals.step_s += self._clock() - started_s
        return events

    def stats(self) -> EngineStats:
        """Counters and the state of now; see EngineStats."""
        totals, scheduler, times = self._totals, self.scheduler, self.executor.times
        return EngineStats(
            **{name: getattr(totals, name) for name in ("steps", "prefill_rows", "decode_rows", "sampled_tokens")},
            submitted=totals.submitted,
            refused=totals.refused,
            finished=dict(totals.finished),
            admitted=scheduler.counts.admitted,
            preemptions=scheduler.counts.preemptions,
            recomputed_tokens=scheduler.counts.recomputed_tokens,
            waiting=len(scheduler.line),
            prefilling=scheduler.num_prefilling,
            decoding=scheduler.num_decoding,
            blocks_used=scheduler.blocks.num_used,
            blocks_peak=scheduler.blocks.peak_used,
            blocks_total=scheduler.blocks.size,
            slots_used=scheduler.slots.num_used,
            slots_total=scheduler.slots.size,
            step_s=totals.step_s,
            model_s=times.model_s,
            sampling_s=times.sampling_s,
            host_s=totals.step_s - times.model_s - times.sampling_s,
        )

    def close(self) -> None:
        """End every sequence and free what the executor holds."""
        self._end(dict.fromkeys(self.scheduler.request_ids(), "abort"))
        self.executor.close()

    def _execute(self, scheduled: ScheduledStep) -> StepOutput:
        for slot, request in scheduled.admitted:
            self.executor.admit(slot, request)
        self.executor.submit(scheduled.step)
        self.executor.sample(scheduled.sample)
        return self.executor.collect()

    def _commit(self, scheduled: ScheduledStep, output: StepOutput) -> list[TokenEvent]:
        committed = self.scheduler.commit(scheduled, output)
        self._count(scheduled, committed)
        request_ids = self.scheduler.table.request_id[committed.slots].tolist()
        tokens = committed.token_ids.tolist()
        events = [TokenEvent(request_id, [token]) for request_id, token in zip(request_ids, tokens)]
        if output.logprobs:
            for event, row in zip(events, committed.rows.tolist()):
                event.logprobs = [output.logprobs[row]] if row in output.logprobs else None
        if output.prompt_logprobs:
            self._prompt_progress.attach(scheduled, self.scheduler.table, output.prompt_logprobs, events)
        ended = np.flatnonzero(committed.stopped | committed.full | committed.failed).tolist()
        if ended:
            self._mark_ends(committed, events, ended)
        return events

    def _mark_ends(self, committed: Committed, events: list[TokenEvent], ended: list[int]) -> None:
        ends: dict[int, FinishReason] = {}
        for index in ended:
            event = events[index]
            if committed.failed[index]:
                position = int(self.scheduler.table.num_tokens[committed.slots[index]])
                event.token_ids, event.logprobs = [], None
                why = self.executor.failures.get(int(committed.rows[index]), "the model gave NaN")
                event.error = f"no token for position {position}: {why}"
                event.finish_reason = "error"
            else:
                event.finish_reason = "stop" if committed.stopped[index] else "length"
            ends[event.request_id] = event.finish_reason
        self._end(ends)

    def _end(self, ends: dict[int, FinishReason]) -> None:
        for slot in self.scheduler.finish(list(ends)):
            self.executor.release(slot)
        for request_id, reason in ends.items():
            self._totals.finished[reason] += 1
            self._prompt_progress.forget(request_id)

    def _count(self, scheduled: ScheduledStep, committed: Committed) -> None:
        totals = self._totals
        totals.steps += 1
        totals.prefill_rows += scheduled.num_prefill_rows
        totals.decode_rows += scheduled.step.num_rows - scheduled.num_prefill_rows
        totals.sampled_tokens += len(committed.slots)
        if len(committed.slots):
            self._watchdog.progress()
        else:
            self._watchdog.no_token(rows=scheduled.step.num_rows, state=self._state())

    def _state(self) -> str:
        scheduler = self.scheduler
        return (
            f"{len(scheduler.line)} waiting, {scheduler.num_prefilling} in prefill, {scheduler.num_decoding} answering; "
            f"{scheduler.blocks.num_free} of {scheduler.blocks.size} blocks and "
            f"{scheduler.slots.num_free} of {scheduler.slots.size} slots free"
        )
