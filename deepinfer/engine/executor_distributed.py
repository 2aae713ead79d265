"""Runs steps of one rank in step with those of others that share experts or n-gram tables with it.

Before every step the leaders of all attention-DP ranks meet. Whoever has rows runs them; whoever has none serves the others
with zero rows of its own, and with a round of zero drafts where anybody drafts. So a rank with work waits for the step that
runs, never longer, and a world without work runs nothing. On devices they agree on the step's size besides: that of the rank
which has most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from deepinfer.engine.serving_executor import AroundExecutor, ServingExecutor
from deepinfer.engine.shared_steps import OwnStepLost, whole_steps
from deepinfer.interfaces import SampleInput, StepOutput, StepPlan
from deepinfer.parallel.meeting import Meeting, Met, Word


class DistributedExecutor(AroundExecutor):
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

    def run_forward(self, plan: StepPlan) -> None:
        room = self.inner.room(plan)._replace(sequences=0)
        met = self._meet(Word(runs=True, drafts=False, works=True, room=room))
        with whole_steps():
            self.inner.run_forward(plan)
        self._end(met)

    def submit(self, plan: StepPlan) -> None:
        met = self._meet(Word(runs=True, drafts=plan.draft, works=True, room=self.inner.room(plan)))
        lost = self._lost(lambda: self.inner.submit(plan))
        if lost is None:
            self._met.append(met)
            return
        with whole_steps():
            if met.drafts:
                self.inner.serve_draft()
        self._end(met)
        raise lost

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
        lost = self._lost(lambda: self.inner.sample(sample))
        with whole_steps():
            if met.drafts and not self.inner.drafted:
                self.inner.serve_draft()
        self._end(met)
        if lost is not None:
            raise lost

    def collect(self) -> StepOutput:
        with whole_steps():
            return self.inner.collect()

    def _meet(self, word: Word) -> Met:
        """Meet, with what this rank was asked to ask for."""
        asked = 0
        while not self._asks.empty():
            code, then = self._asks.get()
            asked = max(asked, code)
            self._asked.append(then)
        met = self._meeting(replace(word, wake=max(word.wake, self._wake), asked=asked))
        self.inner.agree(met.room)
        return met

    def _lost(self, call: Callable[[], None]) -> OwnStepLost | None:
        """Do a part of a step; why it was lost at this rank alone, where it was."""
        try:
            with whole_steps():
                call()
        except OwnStepLost as error:
            return error.with_traceback(None)
        return None

    def _end(self, met: Met) -> None:
        if self._after_step is not None:
            self._after_step(met.asked)
        thens, self._asked = self._asked, []
        for then in thens:
            then()
