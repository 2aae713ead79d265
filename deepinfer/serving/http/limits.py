"""Limits of each API key: requests and tokens a minute, requests at once, tokens of an answer."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

MINUTE_S = 60.0


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None: no limit of its own. `tokens_per_min` counts those of prompts and of answers."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    max_streams: int | None = None  # requests that run at once
    max_tokens: int | None = None  # of one answer, which ends there
    max_priority: int = 0  # requests of a higher one are served before all others

    def __post_init__(self) -> None:
        counts = [name for name in self.__struct_fields__ if name != "max_priority"]
        wrong = [name for name in counts if (value := getattr(self, name)) is not None and value < 1]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} must be at least 1: leave out what has no limit")


class Bucket:
    """Fills evenly up to what a minute allows. What is not known beforehand may be taken afterwards, and leaves it empty for
    longer."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = per_minute / MINUTE_S, float(per_minute), clock
        self._level, self._at_s = self._most, clock()

    def missing_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken, 0 for now; an amount above the most waits for a full bucket."""
        now_s = self._clock()
        self._level, self._at_s = min(self._most, self._level + (now_s - self._at_s) * self._rate), now_s
        return max(0.0, (min(amount, self._most) - self._level) / self._rate)

    def take(self, amount: float) -> None:
        self.missing_s(0.0)
        self._level -= amount

    def give_back(self, amount: float) -> None:
        """What was taken for something that did not come about."""
        self._level = min(self._most, self._level + amount)


class Usage:
    """What one key has used."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.num_open = limits, 0
        self.requests = Bucket(limits.requests_per_min, clock) if limits.requests_per_min else None
        self.tokens = Bucket(limits.tokens_per_min, clock) if limits.tokens_per_min else None
