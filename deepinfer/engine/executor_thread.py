"""Runs another executor in a thread of its own, so that the host schedules while the device computes.

Calls are queued and take effect in order, as on the stream of a device. `collect` alone waits. What an executor holds that
nobody closed is freed by the collector or by the interpreter's end; neither cuts a step short.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from deepinfer.engine.device import StepOutOfMemory, TimedExecutor
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepOutput, StepPlan

_AT_EXIT_S = 10.0  # for a step that still runs when nobody waits for it any more
_LOOK_S = 0.5  # between looks whether the thread still runs

_Calls = SimpleQueue[Callable[[], None] | None]
_Results = SimpleQueue[StepOutput | BaseException]


class ThreadedExecutor:
    """`inner` is used by the thread alone from now on, but for `prepare`, which it must allow beside a running step.

    What it raises in the thread ends the thread, and comes out of `collect`: of the one whose step it was, and of all later. A
    step that is lost for want of memory comes out of its own `collect` alone.
    """

    def __init__(self, inner: TimedExecutor) -> None:
        self.inner = inner
        self._lost: list[StepOutOfMemory] = []  # of the step that was submitted last; the thread's own
        self._calls: _Calls = SimpleQueue()
        self._results: _Results = SimpleQueue()
        self._thread = threading.Thread(
            target=_run, args=(self._calls, self._results), name="deepinfer-device", daemon=True
        )
        self._thread.start()
        self._forgotten = weakref.finalize(self, _stop, self._calls, self._thread, _AT_EXIT_S)

    @property
    def times(self) -> ExecutorTimes:
        return self.inner.times

    def submit(self, plan: StepPlan) -> None:
        inner, lost = self.inner, self._lost

        def run() -> None:
            try:
                inner.submit(plan)
            except StepOutOfMemory as error:
                lost.append(error.with_traceback(None))

        self._calls.put(run)

    def sample(self, sample: SampleInput) -> None:
        inner, results, lost = self.inner, self._results, self._lost

        def run() -> None:
            if lost:
                results.put(lost.pop())
                return
            try:
                inner.sample(sample)
                results.put(inner.collect())
            except StepOutOfMemory as error:
                results.put(error.with_traceback(None))

        self._calls.put(run)

    def collect(self) -> StepOutput:
        result = self._results.get()
        if isinstance(result, StepOutOfMemory):
            raise result
        if isinstance(result, BaseException):
            self._results.put(result)  # whoever asks again hears the same
            raise result
        return result

    def prepare(self, params: SamplingParams) -> None:
        self.inner.prepare(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        inner = self.inner
        self._calls.put(lambda: inner.admit(slot, request, length_end))

    def release(self, slot: int) -> None:
        inner = self.inner
        self._calls.put(lambda: inner.release(slot))

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        inner = self.inner
        self._calls.put(lambda: inner.poison(blocks, slot))

    def ask(self, question: Callable[[], Any]) -> Any:
        """What `question` gives in the thread, after all calls before it; or raises. Waits for it."""
        answers: SimpleQueue[Any] = SimpleQueue()
        self._calls.put(lambda: answers.put(question()))
        while True:
            try:
                return answers.get(timeout=_LOOK_S)
            except Empty:
                if not self._thread.is_alive():  # a fault of this call or of one before it ended the thread
                    return self.collect()

    def close(self) -> None:
        """Let the running step end, then free what the inner executor holds."""
        self._forgotten.detach()
        _stop(self._calls, self._thread, None)
        self._results.put(RuntimeError("this executor is closed"))
        self.inner.close()


def _run(calls: _Calls, results: _Results) -> None:
    """The thread. It holds no reference to the executor, which may be forgotten meanwhile."""
    while (call := calls.get()) is not None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the outermost loop of this thread; the caller gets it
            results.put(error)
            return


def _stop(calls: _Calls, thread: threading.Thread, timeout_s: float | None) -> None:
    calls.put(None)
    if thread is not threading.current_thread():  # where the garbage collector happened to run
        thread.join(timeout_s)
