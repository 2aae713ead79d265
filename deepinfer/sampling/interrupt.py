"""Ctrl-C between steps, never inside one: an engine that is cut in mid-step could not go on."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType


class DeferredInterrupt:
    """While entered, Ctrl-C is only noted; `check` raises KeyboardInterrupt for it, and so does leaving.

    Does nothing in other threads, or where the application has a handler of its own.
    """

    def __init__(self) -> None:
        self._asked = False
        self._ours = False

    def __enter__(self) -> DeferredInterrupt:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._ours = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if kind is None:
            self.check()

    def check(self) -> None:
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True
