"""Runs steps in this process: model, caches, verifier and drafter on the CPU.

The intra-op thread count is the plan's, because it is part of the numerics. torch keeps it per process and OpenMP per calling
thread, so it is set anew whenever a step finds another one: two executors with different counts may take turns.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from deepinfer.engine.decode_state import DecodeState, Resolved
from deepinfer.engine.drafting import DraftGrammar, draft
from deepinfer.engine.live_rows import drafts_of_all, expand, live_rows
from deepinfer.engine.prompt_logprobs import prompt_logprobs
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import (
    Drafter,
    Drafts,
    Request,
    SampleInput,
    SamplingParams,
    StepInput,
    StepOutput,
    StepPlan,
    Verified,
    Verifier,
    VerifyRows,
)
from deepinfer.parallel.meeting import NO_ROOM, Room

if TYPE_CHECKING:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.v41 import V41Model
    from deepinfer.sampling.sampler import Sampler


class LocalExecutor:
    """Owns what it is given; `collect` gives the results of the step that was sampled last."""

    def __init__(
        self,
        model: V41Model,
        cache: ModelCache,
        sampler: Sampler,
        verifier: Verifier,
        state: DecodeState,
        *,
        drafter: Drafter | None = None,
        grammar: DraftGrammar | None = None,
        threads: int,
    ) -> None:
        self.model, self.cache, self.sampler, self.verifier, self.state = model, cache, sampler, verifier, state
        self.drafter, self.grammar, self.threads = drafter, grammar, threads
        self.times = ExecutorTimes()
        self.drafted = False  # whether the step that was sampled last ran a round of drafts
        self._prompt_wanted: dict[int, int] = {}  # slot → prompt tokens, where their log probabilities are asked for
        self._plan: StepPlan | None = None
        self._resolved: Resolved | None = None
        self._hidden_TD: torch.Tensor | None = None
        self._forward_s = 0.0
        self._output: StepOutput | None = None

    def submit(self, plan: StepPlan) -> None:
        assert self._plan is None, "the step before this one was not sampled"
        self._use_threads()
        started_s = time.perf_counter()
        self._plan, self._resolved = plan, self.state.resolve(plan)
        self._hidden_TD = self._forward(self._resolved.step)
        self._forward_s = time.perf_counter() - started_s

    @property
    def row_sizes(self) -> tuple[int, ...]:
        return ()

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """It runs as many rows as there are."""

    def step_clock(self) -> float:
        """Processor time where one thread computes: what others take of a busy machine falls on long steps more than on short
        ones, and would make rows look dear for as long as the curve is kept."""
        return time.thread_time() if self.threads == 1 else time.perf_counter()

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        self.state.plant_drafts(slots, number)

    def run_forward(self, plan: StepPlan) -> None:
        """The forward pass of a step that nobody samples, to be timed."""
        self._use_threads()
        self._forward(self.state.resolve(plan).step)

    def room(self, plan: StepPlan) -> Room:
        """Its collectives say themselves how many rows come."""
        return NO_ROOM

    def agree(self, room: Room) -> None:
        """Nothing here has a size of its own."""

    def serve_forward(self) -> None:
        """A forward pass without rows of its own: others' rows come to the experts and n-gram tables that lie here."""
        self._use_threads()
        started_s = time.perf_counter()
        self.model.serve()
        self.times.model_s += time.perf_counter() - started_s

    def serve_draft(self) -> None:
        """The same for a round of drafts."""
        if self.drafter is not None and self.drafter.needs_features:
            self._use_threads()
            started_s = time.perf_counter()
            cast(Any, self.drafter).serve()
            self.times.drafting_s += time.perf_counter() - started_s

    def _forward(self, step: StepInput) -> torch.Tensor:
        started_s = time.perf_counter()
        if self.drafter is None or not self.drafter.needs_features:
            hidden_TD = self.model.forward(step, self.cache)
            self.times.model_s += time.perf_counter() - started_s
            return hidden_TD
        hidden_TD, features_TF = self.model.forward_with_features(step, self.cache)
        through_s = time.perf_counter()
        self.drafter.observe(step, features_TF)
        self.times.model_s += through_s - started_s
        self.times.drafting_s += time.perf_counter() - through_s
        return hidden_TD

    @torch.inference_mode()
    def sample(self, sample: SampleInput) -> None:
        plan, resolved = self._plan, self._resolved
        assert plan is not None and resolved is not None and self._hidden_TD is not None, "there is no step to sample"
        self._use_threads()
        started_s = time.perf_counter()
        rows, sample_rows = live_rows(resolved, sample)
        logits_RV = self.model.logits(self._hidden_TD[torch.from_numpy(sample_rows)])
        through_s = time.perf_counter()
        self.times.model_s += through_s - started_s
        verified = self.verifier.verify(logits_RV, rows)
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        output = expand(verified, sample.alive, resolved.num_checked)
        if self._prompt_wanted:
            made = self._hidden_TD, self._prompt_wanted, self.model.logits, self.sampler
            output.prompt_logprobs = prompt_logprobs(resolved.step, *made)
        chosen_s = time.perf_counter()
        self.times.sampling_s += chosen_s - through_s
        self.drafted = False
        if plan.draft and self.drafter is not None:
            output.drafts = self._draft(rows, verified, sample.alive)
            self.times.drafting_s += time.perf_counter() - chosen_s
        output.num_rows = resolved.step.num_rows
        output.device_s = self._forward_s + time.perf_counter() - started_s
        self._output = output
        self._plan = self._resolved = self._hidden_TD = None

    def collect(self) -> StepOutput:
        output, self._output = self._output, None
        assert output is not None, "there is no sampled step to collect"
        return output

    def prepare(self, params: SamplingParams) -> None:
        self.sampler.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self.state.admit(slot, request.prompt_ids, length_end)
        self.sampler.admit(slot, request)
        if request.params.prompt_logprobs is not None:
            self._prompt_wanted[slot] = len(request.prompt_ids)

    def release(self, slot: int) -> None:
        self.sampler.release(slot)
        self._prompt_wanted.pop(slot, None)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.cache.fill_nan(blocks.tolist())
        self.cache.fill_nan_slots([slot] if slot >= 0 else [])

    def close(self) -> None:
        """Drop the model and the caches; nothing can be run afterwards."""
        self._plan = self._resolved = self._hidden_TD = self._output = self.drafter = None
        del self.model, self.cache, self.sampler, self.verifier

    def _draft(self, rows: VerifyRows, verified: Verified, alive: np.ndarray | None) -> Drafts:
        """Drafts for all sampled sequences of the step; none for those that are at an end."""
        assert self.drafter is not None
        going = self.state.goes_on(rows.slots, verified)
        self.drafted = bool(going.any())
        made = draft(self.drafter, self.verifier, self.state, self.grammar, rows.slots, verified, going)
        return drafts_of_all(made, going, alive)

    def _use_threads(self) -> None:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
