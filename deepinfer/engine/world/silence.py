"""How long somebody has been silent, by a clock that stands still while this process itself was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable


class Silence:
    """Look at `of_now` every `look_s` or so: a much longer gap between two looks was this process's own sleep (Ctrl-Z, the lid
    of a laptop, a machine that is too busy), and counts against nobody."""

    def __init__(self, limit_s: float, look_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._look_s, self._clock = limit_s, look_s, clock
        self._heard_s = self._looked_s = clock()

    def heard(self) -> None:
        self._heard_s = self._clock()

    def of_now(self) -> float | None:
        """Seconds of silence where they are more than `limit_s`, else None."""
        now_s = self._clock()
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if gap_s > 2 * self._look_s:
            self._heard_s += gap_s - self._look_s
        silent_s = now_s - self._heard_s
        return silent_s if silent_s > self._limit_s else None
