"""Runs steps of one rank in step with those of others that share experts or n-gram tables with it.

Before every step the leaders of all attention-DP ranks meet. Whoever has rows runs them; whoever has none serves the others
with zero rows of its own, and with a round of zero drafts where anybody drafts. So a rank with work waits for the step that
runs, never longer, and a world without work runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.device import StepClocked
from deepinfer.engine.drafting import DraftGrammar
from deepinfer.engine.shared_steps import whole_steps
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepOutput, StepPlan
from deepinfer.parallel.meeting import Meeting, Met, Word


class ServingExecutor(StepClocked, Protocol):
    """An executor whose model is spread: it can take part in the steps of others."""

    grammar: DraftGrammar | None

    @property
    def drafted(self) -> bool:
        """Whether the step that was sampled last ran a round of drafts."""

    def serve_forward(self) -> None:
        """The collectives of one forward pass, with no rows."""

    def serve_draft(self) -> None:
        """Those of one round of drafts, with no sequences."""


class DistributedExecutor:
    """`inner` runs what this rank has. `after_step(asked)` is called after every step that anybody ran, and where somebody
    asked."""

    def __init__(
        self, inner: ServingExecutor, meeting: Meeting, *, after_step: Callable[[int], None] | None = None
    ) -> None:
        self.inner, self._meeting, self._after_step = inner, meeting, after_step
        self._met: list[Met] = []  # of steps that are submitted and not sampled
        self._wake = 0
        self._asks: SimpleQueue[tuple[int, Callable[[], None]]] = SimpleQueue()
        self._asked: list[Callable[[], None]] = []  # to be called after the present step

    @property
    def times(self) -> ExecutorTimes:
        return self.inner.times

    @property
    def state(self) -> DecodeState:
        return self.inner.state

    @property
    def row_sizes(self) -> Sequence[int]:
        return self.inner.row_sizes

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        self.inner.keep_sizes(rows, seconds)

    def step_clock(self) -> float:
        return self.inner.step_clock()

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        self.inner.plant_drafts(slots, number)

    def run_forward(self, plan: StepPlan) -> None:
        met = self._meet(Word(runs=True, drafts=False, works=True))
        with whole_steps():
            self.inner.run_forward(plan)
        self._end(met)

    def submit(self, plan: StepPlan) -> None:
        met = self._meet(Word(runs=True, drafts=plan.draft, works=True))
        with whole_steps():
            self.inner.submit(plan)
        self._met.append(met)

    def heard(self, wake: int) -> None:
        """The newest of the driver's numbered messages that has come to this rank; any thread may say so."""
        self._wake = wake

    def ask(self, code: int, then: Callable[[], None]) -> None:
        """Have every rank call `after_step` with at least this code after the next step or meeting; `then` is called after it.
        Any thread may ask."""
        self._asks.put((code, then))

    def serve(self, word: Word) -> Met:
        """Meet without rows of one's own, and take part in what the others run. Says what came out of the meeting."""
        assert not word.runs, "rows are submitted"
        met = self._meet(word)
        with whole_steps():
            if met.runs:
                self.inner.serve_forward()
            if met.drafts:
                self.inner.serve_draft()
        if met.runs or met.asked:
            self._end(met)
        return met

    def sample(self, sample: SampleInput) -> None:
        met = self._met.pop(0)
        with whole_steps():
            self.inner.sample(sample)
            if met.drafts and not self.inner.drafted:
                self.inner.serve_draft()
        self._end(met)

    def collect(self) -> StepOutput:
        with whole_steps():
            return self.inner.collect()

    def prepare(self, params: SamplingParams) -> None:
        self.inner.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self.inner.admit(slot, request, length_end)

    def release(self, slot: int) -> None:
        self.inner.release(slot)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.inner.poison(blocks, slot)

    def close(self) -> None:
        self.inner.close()

    def _meet(self, word: Word) -> Met:
        """Meet, with what this rank was asked to ask for."""
        asked = 0
        while not self._asks.empty():
            code, then = self._asks.get()
            asked = max(asked, code)
            self._asked.append(then)
        return self._meeting(replace(word, wake=max(word.wake, self._wake), asked=asked))

    def _end(self, met: Met) -> None:
        if self._after_step is not None:
            self._after_step(met.asked)
        thens, self._asked = self._asked, []
        for then in thens:
            then()
