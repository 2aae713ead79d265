"""One line on stderr while step times are measured, for who would else wonder what takes so long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

QUIET_S = 1.0  # what is through by then needs no word
REWRITE = "\r\x1b[K"  # back to the beginning of the line, which is cleared


class MeasuringLine:
    """A context whose `report` hears of each size. On a terminal the line is rewritten and goes; elsewhere it is said once."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._started_s = clock, clock()
        self._said = False

    def report(self, done: int, most: int) -> None:
        if self._clock() - self._started_s < QUIET_S:
            return
        text = f"measuring step times: {done} of at most {most} sizes"
        if self._stream.isatty():
            print(f"{REWRITE}{text}", end="", file=self._stream, flush=True)
        elif not self._said:
            print(f"deepinfer: {text}", file=self._stream, flush=True)
        self._said = True

    def __enter__(self) -> MeasuringLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._said and self._stream.isatty():
            print(REWRITE, end="", file=self._stream, flush=True)
