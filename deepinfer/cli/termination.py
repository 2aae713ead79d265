"""SIGTERM as a polite Ctrl-C: what runs is wound up, results are kept, and one line says what happened."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Termination:
    """While entered, SIGTERM does what Ctrl-C does, and `asked` tells the two apart. Does nothing in other threads, or where
    the application has a handler of its own."""

    def __init__(self) -> None:
        self.asked = False
        self._ours = False

    def __enter__(self) -> Termination:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._note)
            self._ours = True
        return self

    def __exit__(self, *_: Any) -> None:
        if self._ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, _signal: int, frame: FrameType | None) -> None:
        self.asked = True
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # a background job ignores Ctrl-C, but not this
            raise KeyboardInterrupt
