"""What a step is timed by when nothing else runs, and that nothing of it stays behind."""

import time

import numpy as np
import pytest
from toy_executor import ToyExecutor, toy_limits

from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.engine.step_timer import StepTimer
from deepinfer.interfaces import SampleInput, StepPlan

LIMITS = toy_limits(max_model_len=400, num_blocks=120, draft_depth=2, max_num_batched_tokens=64)


class Clocked(ToyExecutor):
    """A row takes 1 s of the wall and 0.25 s of the processor; sampling a sequence as much again."""

    def __init__(self, threads: int) -> None:
        super().__init__(LIMITS)
        self.threads, self.wall_s, self.cpu_s = threads, 0.0, 0.0

    step_clock = LocalExecutor.step_clock

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        self.state.plant_drafts(slots, number)

    def work(self, units: int) -> None:
        self.wall_s, self.cpu_s = self.wall_s + units, self.cpu_s + units / 4

    def run_forward(self, plan: StepPlan) -> None:
        self.work(self.state.resolve(plan).step.num_rows)

    def submit(self, plan: StepPlan) -> None:
        self.sampled = plan.num_decode
        self.run_forward(plan)

    def sample(self, sample: SampleInput) -> None:
        self.work(self.sampled)

    def collect(self) -> None:
        pass

    sampled: int


@pytest.mark.parametrize(("threads", "unit_s"), [(1, 0.25), (2, 1.0)])
def test_one_thread_is_timed_by_its_processor_time(
    threads: int, unit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Clocked(threads)
    monkeypatch.setattr(time, "thread_time", lambda: executor.cpu_s)
    monkeypatch.setattr(time, "perf_counter", lambda: executor.wall_s)
    timer = StepTimer(executor, max_model_len=400, block_tokens=LIMITS.block_tokens, num_blocks=LIMITS.num_blocks)
    for rows in (1, 2, 3, 7, 18):
        assert timer(rows, 0, False) == rows * unit_s
    assert timer(4, 4, True) == 8 * unit_s
    assert not executor.requests, "whoever was let in for it has left"
