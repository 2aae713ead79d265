"""Runs another executor in a thread of its own, so that the host schedules while the device computes.

Calls are queued and take effect in order, as on the stream of a device. `collect` alone waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from deepinfer.engine.device import TimedExecutor
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepOutput, StepPlan


class ThreadedExecutor:
    """`inner` is used by the thread alone from now on, but for `prepare`, which it must allow beside a running step."""

    def __init__(self, inner: TimedExecutor) -> None:
        self.inner = inner
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: SimpleQueue[StepOutput | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="deepinfer-device", daemon=True)
        self._thread.start()

    @property
    def times(self) -> ExecutorTimes:
        return self.inner.times

    def submit(self, plan: StepPlan) -> None:
        self._calls.put(lambda: self.inner.submit(plan))

    def sample(self, sample: SampleInput) -> None:
        def run() -> None:
            self.inner.sample(sample)
            self._results.put(self.inner.collect())

        self._calls.put(run)

    def collect(self) -> StepOutput:
        result = self._results.get()
        if isinstance(result, BaseException):
            self._results.put(result)  # whoever asks again hears the same
            raise result
        return result

    def prepare(self, params: SamplingParams) -> None:
        self.inner.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self._calls.put(lambda: self.inner.admit(slot, request, length_end))

    def release(self, slot: int) -> None:
        self._calls.put(lambda: self.inner.release(slot))

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self._calls.put(lambda: self.inner.poison(blocks, slot))

    def close(self) -> None:
        """Let the running step end, then free what the inner executor holds."""
        self._calls.put(None)
        self._thread.join()
        self.inner.close()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - the outermost loop of this thread; the caller gets it
                self._results.put(error)
                return
