"""Executors of ranks that run steps together: what such a one can do besides, and what goes through those around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.device import StepClocked
from deepinfer.engine.drafting import DraftGrammar
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SamplingParams, StepOutput, StepPlan
from deepinfer.parallel.meeting import Room


class ServingExecutor(StepClocked, Protocol):
    """An executor whose model is spread: it can take part in the steps of others.

    Where a step is lost here alone (`OwnStepLost`), what others needed of it was done.
    """

    grammar: DraftGrammar | None

    def room(self, plan: StepPlan) -> Room:
        """What the step needs; nothing where sizes need not be agreed upon."""

    def agree(self, room: Room) -> None:
        """Ranks agreed on this for the forward pass that comes next, and for the round of drafts behind it."""

    @property
    def drafted(self) -> bool:
        """Whether the step that was sampled last ran a round of drafts."""

    def serve_forward(self) -> None:
        """The collectives of one forward pass, with no rows."""

    def serve_draft(self) -> None:
        """Those of one round of drafts, with no sequences."""


class AroundExecutor:
    """Hands everything but steps on to `inner`, as it is."""

    inner: ServingExecutor

    @property
    def times(self) -> ExecutorTimes:
        return self.inner.times

    @property
    def state(self) -> DecodeState:
        return self.inner.state

    @property
    def drafted(self) -> bool:
        return self.inner.drafted

    @property
    def row_sizes(self) -> Sequence[int]:
        return self.inner.row_sizes

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        self.inner.keep_sizes(rows, seconds)

    def room(self, plan: StepPlan) -> Room:
        return self.inner.room(plan)

    def agree(self, room: Room) -> None:
        self.inner.agree(room)

    def step_clock(self) -> float:
        return self.inner.step_clock()

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        self.inner.plant_drafts(slots, number)

    def prepare(self, params: SamplingParams) -> None:
        self.inner.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self.inner.admit(slot, request, length_end)

    def release(self, slot: int) -> None:
        self.inner.release(slot)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.inner.poison(blocks, slot)

    def collect(self) -> StepOutput:
        return self.inner.collect()

    def close(self) -> None:
        self.inner.close()
