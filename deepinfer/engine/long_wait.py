"""A word on stderr where a wait takes longer than anyone expects."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

QUIET_S = 2.0  # what is through by then needs no word


@contextmanager
def explained(text: str, *, on: bool = True, stream: TextIO | None = None, quiet_s: float = QUIET_S) -> Iterator[None]:
    """Says `text` once what is inside has taken `quiet_s`, where that is `on`."""
    if not on:
        yield
        return
    timer = threading.Timer(quiet_s, lambda: print(f"deepinfer: {text}", file=stream or sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
