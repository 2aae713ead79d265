"""The loop: schedule → submit → commit the step before → sample, and the events that come of it.

At `async_depth` 0 the step before is the step itself: everything of it is known when `step` returns. At depth 1 a step is
scheduled and submitted while the one before it still runs; ends and grammar masks are settled before its tokens are chosen.
Both give the same tokens.

Everything a request can do wrong is found at `submit`, so that a step only ever fails a sequence for what the model gave it.
Ends that show in tokens (length, end-of-sequence and stop ids) are found here; stop *strings* are found by the output layer,
which then calls `finish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.engine.booking import Committed
from deepinfer.engine.device import StepOutOfMemory, TimedExecutor
from deepinfer.engine.events import TokenEvent
from deepinfer.engine.grammar_line import GrammarLine
from deepinfer.engine.limits import EngineLimits, RequestRefused
from deepinfer.engine.prompt_progress import PromptProgress
from deepinfer.engine.request_checks import checked_place, checked_request
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.seeds import SeedSource, sequence_key
from deepinfer.engine.stats import EngineStats, Totals, engine_stats
from deepinfer.engine.step_loss import give_way, too_large
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.engine.watchdog import Watchdog
from deepinfer.interfaces import FinishReason, Request, SampleInput, SamplingParams, StepOutput, VerifyLengths
from deepinfer.sampling.params import ParamsError

if TYPE_CHECKING:
    from deepinfer.cache.prefix_cache import PrefixCache
    from deepinfer.sampling.grammar.desk import GrammarDesk


class Engine:
    """Runs sequences on one executor. One thread at a time may call it."""

    def __init__(
        self,
        executor: TimedExecutor,
        limits: EngineLimits,
        *,
        lengths: VerifyLengths | None = None,
        prefix: PrefixCache | None = None,
        grammar: GrammarDesk | None = None,
        no_grammar: str = "this engine was built without grammars (grammar=none): type grammar=llguidance",
        seed_entropy: int | None = None,
        poison_freed: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`prefix` None: nothing is kept for later requests. `no_grammar` is told to who asks for a grammar where there is no
        `grammar`. `seed_entropy` makes the seeds of requests without one repeatable. `poison_freed` is for tests."""
        self.limits = limits
        self.executor = executor
        on_freed = {"on_freed": executor.poison} if poison_freed else {}
        self.scheduler = Scheduler(limits, lengths=lengths, prefix=prefix, **on_freed)
        self.grammars = GrammarLine(grammar, no_grammar)
        self._seeds = SeedSource(seed_entropy)
        self.clock = clock
        self._totals = Totals(limits.draft_depth)
        self._pending: list[TokenEvent] = []  # ends that no step brings: aborts
        self.newly_admitted: list[int] = []  # request ids that the newest step admitted
        self.on_admitted: Callable[[list[int]], None] = lambda request_ids: None  # told before that step is computed
        self.num_submitted = 0  # steps handed to the executor
        self._flying: ScheduledStep | None = None  # sampled, not collected
        self._prompt_progress = PromptProgress()
        self._next_id = 0
        prefill_steps = -(-limits.max_model_len // min(limits.max_prefill_tokens, limits.max_num_batched_tokens))
        self._watchdog = Watchdog(prefill_steps, limits.watchdog_s, clock)

    def submit(
        self, prompt_ids: np.ndarray, params: SamplingParams, *, priority: int = 0, cache_salt: str = ""
    ) -> list[int]:
        """Queue one prompt; returns the ids of its `params.n` sequences, answer 0 first.

        Higher `priority` is served first and preempted last. Cached prefixes are shared within one `cache_salt` only.
        Raises RequestRefused (a ValueError) with numbers where the request can never be served: bad ids, too long for the
        model or for the cache. See `limits` for how answers are cut. Raises ParamsError (a ValueError too) with all that is
        wrong with `params`.
        """
        try:
            prompt, params, length_end = checked_request(prompt_ids, params, self.limits)
            priority, cache_salt = checked_place(priority, cache_salt)
            self.grammars.prepare(params)
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
                arrival_s=self.clock(),
                cache_salt=cache_salt,
            )
            if not self.grammars.hold(request, length_end, stop_ids):
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
        if not (self.scheduler.holds(request_id) or self.grammars.holds(request_id)):
            return False
        self._end({request_id: reason})
        return True

    @property
    def unfinished(self) -> int:
        """Sequences that have not ended: waiting, running and preempted ones, and those whose grammar is being compiled."""
        return self.scheduler.unfinished + len(self.grammars)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to say."""
        return bool(self._pending) or self._flying is not None or self.unfinished > 0

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it, or at depth 1 the one before it, brought: one event a sequence at most."""
        started_s = self.clock()
        events, self._pending = self._pending, []
        self._admit_compiled(events)
        scheduled = self.scheduler.schedule() if self.scheduler.unfinished else None
        self.newly_admitted = [one.request.request_id for one in scheduled.admitted] if scheduled else []
        if self.newly_admitted:
            self.on_admitted(self.newly_admitted)
        lost = None
        if scheduled is not None:
            lost = self._submit(scheduled)
        elif self.unfinished and self._flying is None:
            self._wait_for_grammars()
        if self.limits.async_depth:
            events += self._settle()
        if scheduled is not None:
            lost = lost or self._sample(scheduled, events)
            if lost:
                self._lose(scheduled, lost, events)
        if not self.limits.async_depth:
            events += self._settle()
        self._totals.step_s += self.clock() - started_s
        return events

    def stats(self) -> EngineStats:
        """Counters and the state of now; see EngineStats."""
        return engine_stats(self._totals, self.scheduler, self.executor.times, compiling=len(self.grammars))

    def take_notices(self) -> list[str]:
        """What the user should know of how it runs, each sentence once: speculation that does not pay, a cache without hits."""
        return self.scheduler.take_notices()

    def close(self) -> None:
        """End every sequence and free what the executor holds."""
        self._end(dict.fromkeys([*self.scheduler.request_ids(), *self.grammars.request_ids()], "abort"))
        self._flying = None
        self.grammars.close()
        self.executor.close()

    def _submit(self, scheduled: ScheduledStep) -> StepOutOfMemory | None:
        """Returns why the step was not carried out, where it was not."""
        self._totals.steps_ahead += self._flying is not None
        self.num_submitted += 1
        for admission in scheduled.admitted:
            self.executor.admit(admission.slot, admission.request, admission.length_end)
            self.grammars.attach(admission.slot, admission.request)
        try:
            self.executor.submit(scheduled.plan)
        except StepOutOfMemory as error:
            return error.with_traceback(None)
        return None

    def _sample(self, scheduled: ScheduledStep, events: list[TokenEvent]) -> StepOutOfMemory | None:
        """The same for the rest of the step."""
        sample = self._sample_input(scheduled, events)
        try:
            self.executor.sample(sample)
        except StepOutOfMemory as error:
            return error.with_traceback(None)
        self._flying = scheduled
        return None

    def _lose(self, scheduled: ScheduledStep, why: StepOutOfMemory, events: list[TokenEvent]) -> None:
        """A step for which memory did not suffice: its sequences are computed again in smaller ones."""
        self.scheduler.counts.lost_steps += 1
        refused = give_way(self.scheduler, scheduled)
        self._watchdog.expect(-(-self.limits.max_model_len // self.scheduler.rows.now))
        table, slots = self.scheduler.table, scheduled.plan.slots
        for request_id in refused:
            event = next((event for event in events if event.request_id == request_id), None)
            if event is None:
                events.append(event := TokenEvent(request_id, []))
            event.finish_reason = "error"
            event.error = too_large(str(why), int(table.num_tokens[slots[0]]), self.limits)
        self._end(dict.fromkeys(refused, "error"))

    def _settle(self) -> list[TokenEvent]:
        """Wait for the step in flight and book what it brought."""
        if self._flying is None:
            return []
        scheduled, self._flying = self._flying, None
        try:
            output = self.executor.collect()
        except StepOutOfMemory as error:
            events: list[TokenEvent] = []
            self._lose(scheduled, error, events)
            return events
        committed = self.scheduler.commit(scheduled, output)
        return self._tell(scheduled, output, committed)

    def _sample_input(self, scheduled: ScheduledStep, events: list[TokenEvent]) -> SampleInput:
        """Who of a step's sequences still lives, and what their grammars allow."""
        table, slots = self.scheduler.table, scheduled.sampled_slots
        alive = table.epoch[slots] == scheduled.epochs[scheduled.sampled]
        sample = SampleInput(alive=None if alive.all() else alive)
        if self.grammars:
            sample.masks = self.grammars.masks(slots, alive, table.drafts)
        return sample

    def _tell(self, scheduled: ScheduledStep, output: StepOutput, committed: Committed) -> list[TokenEvent]:
        """Events of a committed step; whoever is at an end leaves."""
        table = self.scheduler.table
        request_ids = table.request_id[committed.slots].tolist()
        tokens, firsts = output.token_ids.tolist(), committed.firsts.tolist()
        lasts = (committed.firsts + committed.counts).tolist()
        drafts = committed.drafts(output)
        if drafts is None:
            events = [TokenEvent(i, tokens[first:last]) for i, first, last in zip(request_ids, firsts, lasts)]
        else:
            events = [
                TokenEvent(i, tokens[first:last], num_checked=checked, num_accepted=accepted)
                for i, first, last, checked, accepted in zip(request_ids, firsts, lasts, *drafts)
            ]
        self._count(scheduled, output, committed)
        if self.scheduler.prefix is not None:
            self.scheduler.prefix.tell(events)
        if output.logprobs:
            for event, first, last in zip(events, firsts, lasts):
                event.logprobs = [output.logprobs[e] for e in range(first, last) if e in output.logprobs] or None
        if output.prompt_logprobs:
            self._prompt_progress.attach(scheduled, table, output.prompt_logprobs, events)
        errors = self.grammars.advance(committed.slots, events) if self.grammars else {}
        ended = np.flatnonzero(committed.stopped | committed.full | committed.failed).tolist()
        if ended or errors:
            self._mark_ends(output, committed, events, ended, errors)
        return events

    def _mark_ends(
        self,
        output: StepOutput,
        committed: Committed,
        events: list[TokenEvent],
        ended: list[int],
        errors: dict[int, str],
    ) -> None:
        ends: dict[int, FinishReason] = {}
        for index in sorted({*ended, *errors}):
            event = events[index]
            if index in errors:
                event.error, event.finish_reason = errors[index], "error"
            elif committed.failed[index]:
                position = int(self.scheduler.table.num_tokens[committed.slots[index]])
                why = output.failures.get(int(committed.rows[index]), "the model gave NaN")
                event.error = f"no token for position {position}: {why}"
                event.finish_reason = "error"
            else:
                event.finish_reason = "stop" if committed.stopped[index] else "length"
            ends[event.request_id] = event.finish_reason
        self._end(ends)

    def _end(self, ends: dict[int, FinishReason]) -> None:
        held = [request_id for request_id in ends if not self.grammars.drop(request_id)]
        for slot in self.scheduler.finish(held):
            self.executor.release(slot)
            self.grammars.detach(slot)
        for request_id, reason in ends.items():
            self._totals.finished[reason] += 1
            self._prompt_progress.forget(request_id)

    def _admit_compiled(self, events: list[TokenEvent]) -> None:
        """Requests whose grammar is ready join the line; those whose grammar cannot be had end."""
        for held, error in self.grammars.ready():
            request_id = held.request.request_id
            if error is None:
                self.scheduler.add(held.request, held.length_end, held.stop_ids)
            else:
                self._totals.finished["error"] += 1
                self._prompt_progress.forget(request_id)
                events.append(TokenEvent(request_id, [], finish_reason="error", error=error))

    def _wait_for_grammars(self) -> None:
        if len(self.grammars):
            self.grammars.wait()
        else:
            self._watchdog.no_token(rows=0, state=self._state())

    def _count(self, scheduled: ScheduledStep, output: StepOutput, committed: Committed) -> None:
        self._totals.add_step(scheduled, output, committed)
        if len(committed.slots):
            self._watchdog.progress()
        else:
            self._watchdog.no_token(rows=output.num_rows, state=self._state())

    def _state(self) -> str:
        scheduler = self.scheduler
        return (
            f"{len(scheduler.line)} waiting, {scheduler.num_prefilling} in prefill, {scheduler.num_decoding} answering; "
            f"{scheduler.blocks.num_free} of {scheduler.blocks.size} blocks and "
            f"{scheduler.slots.num_free} of {scheduler.slots.size} slots free"
        )
