"""Runs steps in this process: model, caches and sampler on the CPU.

The intra-op thread count is the plan's, because it is part of the numerics. torch keeps it per process and OpenMP per calling
thread, so it is set anew whenever a step finds another one: two executors with different counts may take turns.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepInput, StepOutput, TokenLogprobs

if TYPE_CHECKING:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.v41 import V41Model
    from deepinfer.sampling.sampler import Sampler

PROMPT_ROWS = 128  # rows of logits held at once for prompt log probabilities: 66 MB at a vocabulary of 129,280


class LocalExecutor:
    """Owns what it is given; `collect` gives the results of the step that was sampled last."""

    def __init__(self, model: V41Model, cache: ModelCache, sampler: Sampler, *, threads: int) -> None:
        self.model, self.cache, self.sampler, self.threads = model, cache, sampler, threads
        self.times = ExecutorTimes()
        self.failures: dict[int, str] = {}
        self._prompt_wanted: dict[int, int] = {}  # slot → prompt tokens, where their log probabilities are asked for
        self._step: StepInput | None = None
        self._hidden_TD: torch.Tensor | None = None
        self._output: StepOutput | None = None

    def submit(self, step: StepInput) -> None:
        assert self._step is None, "the step before this one was not sampled"
        self._use_threads()
        started_s = time.perf_counter()
        self._step, self._hidden_TD = step, self.model.forward(step, self.cache)
        self.times.model_s += time.perf_counter() - started_s

    @torch.inference_mode()
    def sample(self, sample: SampleInput) -> None:
        assert self._step is not None and self._hidden_TD is not None, "there is no step to sample"
        self._use_threads()
        started_s = time.perf_counter()
        logits_RV = self.model.logits(self._hidden_TD[torch.from_numpy(self._step.sample_rows)])
        through_s = time.perf_counter()
        self._output = self.sampler.sample(logits_RV, sample)
        self.failures = dict(self.sampler.failures)
        if self._prompt_wanted:
            self._output.prompt_logprobs = self._prompt_logprobs(self._step, self._hidden_TD)
        self.times.model_s += through_s - started_s
        self.times.sampling_s += time.perf_counter() - through_s
        self._step = self._hidden_TD = None

    def collect(self) -> StepOutput:
        output, self._output = self._output, None
        assert output is not None, "there is no sampled step to collect"
        return output

    def prepare(self, params: SamplingParams) -> None:
        self.sampler.prepare(params)

    def admit(self, slot: int, request: Request) -> None:
        self.sampler.admit(slot, request)
        if request.params.prompt_logprobs is not None:
            self._prompt_wanted[slot] = len(request.prompt_ids)

    def release(self, slot: int) -> None:
        self.sampler.release(slot)
        self._prompt_wanted.pop(slot, None)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.cache.fill_nan(blocks.tolist())
        self.cache.fill_nan_slots([slot])

    def close(self) -> None:
        """Drop the model and the caches; nothing can be run afterwards."""
        self._step = self._hidden_TD = self._output = None
        del self.model, self.cache, self.sampler

    def _prompt_logprobs(self, step: StepInput, hidden_TD: torch.Tensor) -> dict[int, list[TokenLogprobs]]:
        """Sequence of the step → log probabilities of the prompt tokens that its rows predict."""
        found = {}
        for sequence, slot in enumerate(step.state_slots.tolist()):
            if slot not in self._prompt_wanted:
                continue
            start, end = int(step.row_starts[sequence]), int(step.row_starts[sequence + 1])
            targets = step.positions[start:end] + 1
            targets = targets[targets < self._prompt_wanted[slot]]
            rows: list[TokenLogprobs] = []
            for done in range(0, len(targets), PROMPT_ROWS):
                part = targets[done : done + PROMPT_ROWS]
                logits_RV = self.model.logits(hidden_TD[start + done : start + done + len(part)])
                rows += self.sampler.prompt_logprobs(slot, part, logits_RV)
            if rows:
                found[sequence] = rows
        return found

    def _use_threads(self) -> None:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
