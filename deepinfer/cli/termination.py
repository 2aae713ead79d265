"""SIGTERM and SIGHUP as a polite Ctrl-C: what runs is wound up, results are kept, and one line says what happened."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class Termination:
    """While entered, SIGTERM and SIGHUP (a terminal that was closed) do what Ctrl-C does, and `asked` tells them from it.

    Does nothing in other threads, or where the application has a handler of its own or ignores a signal, as nohup does.
    """

    def __init__(self) -> None:
        self.asked = False
        self._ours: list[signal.Signals] = []

    def __enter__(self) -> Termination:
        in_main = threading.current_thread() is threading.main_thread()
        for each in (signal.SIGTERM, signal.SIGHUP) if in_main else ():
            if signal.getsignal(each) is signal.SIG_DFL:
                signal.signal(each, self._note)
                self._ours.append(each)
        return self

    def __exit__(self, *_: Any) -> None:
        for each in self._ours:
            signal.signal(each, signal.SIG_DFL)

    def _note(self, _signal: int, frame: FrameType | None) -> None:
        self.asked = True
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # a background job ignores Ctrl-C, but not this
            raise KeyboardInterrupt
