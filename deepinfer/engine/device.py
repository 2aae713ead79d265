"""What the engine asks of an executor beyond the seam: its times, preparation of requests, and poison for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Executor, SampleInput, SamplingParams, StepPlan


class StepOutOfMemory(RuntimeError):
    """A step was not carried out: its device has no memory for it. Nothing of it counts; what was there before still does."""


class TimedExecutor(Executor, Protocol):
    """An executor that says where its time went.

    Its `submit` and `sample`, or `collect` in their place, raise StepOutOfMemory for a step that is lost; the next one may be
    submitted then.
    """

    @property
    def times(self) -> ExecutorTimes: ...

    def prepare(self, params: SamplingParams) -> None:
        """Build what sampling with these valid parameters needs; raises ParamsError. `admit` cannot fail afterwards."""

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        """Fill freed blocks and the state of a freed slot with NaN bytes, so that a stale read shows.

        Slot -1 is none; behind the slots of sequences lie those of snapshots.
        """


class StepClocked(TimedExecutor, Protocol):
    """An executor whose steps can be timed one by one, before there are requests."""

    @property
    def state(self) -> DecodeState: ...

    @property
    def row_sizes(self) -> Sequence[int]:
        """To which numbers of rows it fills up decode steps, rising; empty where it does not."""

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Steps of `rows` rows, rising, took so long: leave out those sizes that the next one is as fast as."""

    def step_clock(self) -> float:
        """Seconds; between two calls the work of the steps that ended there counts, and as little else as can be helped."""

    def run_forward(self, plan: StepPlan) -> None:
        """The forward pass of a step that nobody samples; it is through when this returns."""

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        """Give `slots` so many drafts of any tokens, all as likely to be accepted."""


def run_step(executor: Executor, plan: StepPlan) -> None:
    """A whole step of sequences that are all alive, under no grammar; nobody wants its results."""
    executor.submit(plan)
    executor.sample(SampleInput())
    executor.collect()
