"""A device that does nothing for a given time: the real engine runs on it, only the forward pass is replaced.

Tokens are a fixed function of the sequence's key, the position and the tokens before it, so runs can be compared.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol

import numpy as np

from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepInput, StepOutput

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


class Clock(Protocol):
    def now(self) -> float:
        """Seconds."""

    def wait_until(self, time_s: float) -> None: ...


class VirtualClock:
    """Time that passes only when someone waits."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        self._now_s = max(self._now_s, time_s)


class RealClock:
    """The machine's clock; waiting sleeps."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, time_s: float) -> None:
        left_s = time_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


class SimulatedExecutor:
    """Every step takes `step_time_s` on `clock`, one after another."""

    def __init__(
        self, *, vocab_size: int, num_slots: int, step_time_s: float = 0.0, clock: Clock | None = None
    ) -> None:
        self.clock = clock or VirtualClock()
        self.times = ExecutorTimes()
        self.failures: dict[int, str] = {}
        self._vocab_size = np.uint64(vocab_size)
        self._step_time_s = step_time_s
        self._keys = np.zeros(num_slots, dtype=np.uint64)
        self._submitted: deque[tuple[StepInput, float]] = deque()  # with the time at which the device is through
        self._sampled: deque[tuple[StepOutput, float]] = deque()
        self._busy_until_s = 0.0

    def submit(self, step: StepInput) -> None:
        self._busy_until_s = max(self.clock.now(), self._busy_until_s) + self._step_time_s
        self._submitted.append((step, self._busy_until_s))

    def sample(self, sample: SampleInput) -> None:
        step, ready_s = self._submitted.popleft()
        last = step.ngram_ids[step.sample_rows].astype(np.uint64)
        mixed = (self._keys[sample.slots] + sample.positions.astype(np.uint64)) * _FACTORS[0] + last[:, 0] * _FACTORS[1]
        if last.shape[1] > 1:
            mixed += last[:, 1] * _FACTORS[2]
        token_ids = ((mixed ^ (mixed >> np.uint64(29))) % self._vocab_size).astype(np.int64)
        self._sampled.append((StepOutput(token_ids=token_ids, failed=np.zeros(len(token_ids), dtype=bool)), ready_s))

    def collect(self) -> StepOutput:
        output, ready_s = self._sampled.popleft()
        self.clock.wait_until(ready_s)
        self.times.model_s += self._step_time_s
        return output

    def prepare(self, params: SamplingParams) -> None:
        """Parameters change nothing here."""

    def admit(self, slot: int, request: Request) -> None:
        self._keys[slot] = request.seed

    def release(self, slot: int) -> None:
        self._keys[slot] = 0

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        """There is no memory to fill."""

    def close(self) -> None:
        self._submitted.clear()
        self._sampled.clear()
