"""Says so when requests wait and nothing moves, instead of spinning for ever."""

from __future__ import annotations

from collections.abc import Callable

MAX_EMPTY_STEPS = 8


class EngineStalled(RuntimeError):
    """The engine has requests and makes no progress: a defect of ours. The message has the state."""


class Watchdog:
    """Progress is a token.

    Rows alone do not count: preempting and computing again in a circle is a stall as well. A prompt may take
    `longest_prefill_steps` steps until its first token, so tokens may stay away for that many steps and `limit_s` seconds.
    """

    def __init__(self, longest_prefill_steps: int, limit_s: float, clock: Callable[[], float]) -> None:
        self._longest_steps = longest_prefill_steps + MAX_EMPTY_STEPS
        self._limit_s = limit_s
        self._clock = clock
        self.progress()

    def expect(self, longest_prefill_steps: int) -> None:
        """Steps have become smaller: a prompt may take so many of them."""
        self._longest_steps = max(self._longest_steps, longest_prefill_steps + MAX_EMPTY_STEPS)

    def progress(self) -> None:
        self._empty_steps = self._steps = 0
        self._last_s = self._clock()

    def no_token(self, *, rows: int, state: str) -> None:
        """A step of `rows` rows while requests were unfinished brought no token. Raises EngineStalled at the limit."""
        if not self._limit_s:
            return
        self._steps += 1
        self._empty_steps = 0 if rows else self._empty_steps + 1
        if self._empty_steps > MAX_EMPTY_STEPS:
            raise EngineStalled(f"{self._empty_steps} steps found nothing to run while requests wait: {state}")
        waited_s = self._clock() - self._last_s
        if self._steps > self._longest_steps and waited_s > self._limit_s:
            raise EngineStalled(f"no token in {self._steps} steps and {waited_s:.1f} s: {state}")
