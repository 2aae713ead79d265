"""The access log: one JSON line for each request on stderr. What was asked and answered never stands in it."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from starlette.types import Scope

    from deepinfer.serving.answers import Answers

MOST_LINES = 10_000
QUIET_PATHS = frozenset(
    {"/live", "/health", "/metrics", "/v1/stats"}
)  # asked every few seconds; logged where they break


class AccessLog:
    """Lines go out in a thread of their own, so that nobody waits for whoever reads them; `out` None: stderr.

    Where the reader falls behind by MOST_LINES, lines are left out, and the next one says how many ("left_out").
    """

    def __init__(self, *, on: bool = True, out: TextIO | None = None) -> None:
        self._out, self._left_out = out or sys.stderr, 0
        self._lines: Queue[bytes] = Queue(MOST_LINES)
        self._thread = threading.Thread(target=self._write, name="access-log", daemon=True) if on else None
        if self._thread is not None:
            self._thread.start()

    def __call__(self, scope: Scope, status: int, seconds: float, sent_bytes: int) -> None:
        if self._thread is None or (scope["path"] in QUIET_PATHS and status in (200, 503)):
            return
        line = _line(scope, status, seconds, sent_bytes)
        if self._left_out:
            line["left_out"] = self._left_out
        try:
            self._lines.put_nowait(msgspec.json.encode(line))
            self._left_out = 0
        except Full:
            self._left_out += 1

    def close(self) -> None:
        """Wait a moment for what was said."""
        if self._thread is not None:
            with suppress(Full):
                self._lines.put_nowait(b"")
                self._thread.join(1.0)
            self._thread = None

    def _write(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more
            while line := self._lines.get():
                self._out.write(line.decode() + "\n")
                self._out.flush()


def _line(scope: Scope, status: int, seconds: float, sent_bytes: int) -> dict[str, Any]:
    state = scope.get("state", {})
    client, key = scope.get("client"), state.get("key")
    line = {
        "time": round(time.time(), 3),
        "request_id": state.get("request_id"),
        "client": client[0] if client else None,
        "key": key.id if key is not None else None,
        "method": scope["method"],
        "path": scope["path"].encode("utf-8", "replace").decode(),
        "status": status,
        "ms": round(seconds * 1e3, 1),
        "sent_bytes": sent_bytes,
    }
    if "ended" in state:
        line["ended"] = state["ended"]  # client_gone or slow_reader
    answers: list[Answers] = state.get("answers", [])
    return line | (_generated(answers) | {"stream": state.get("stream")} if answers else {})


def _generated(answers: list[Answers]) -> dict[str, Any]:
    first, reasons = answers[0].timings, [reason for each in answers for reason in each.finish_reasons]
    return {
        "prompt_tokens": sum(each.prompt_tokens for each in answers),
        "cached_tokens": sum(each.cached_tokens for each in answers),
        "completion_tokens": sum(each.num_tokens for each in answers),
        "queue_ms": None if first.queue_ms is None else round(first.queue_ms, 1),
        "first_token_ms": None if first.first_token_ms is None else round(first.first_token_ms, 1),
        "finish_reasons": reasons,
    }
