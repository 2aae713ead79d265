"""Clocks of a device that only takes time."""

from __future__ import annotations

import time
from typing import Protocol

SPIN_S = 0.0005  # a sleep wakes up late by up to this much, so the rest of a wait is spent looking at the clock


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
    """The machine's clock; waiting sleeps, and spins at the end."""

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, time_s: float) -> None:
        left_s = time_s - time.perf_counter()
        if left_s > SPIN_S:
            time.sleep(left_s - SPIN_S)
        while time.perf_counter() < time_s:
            pass
