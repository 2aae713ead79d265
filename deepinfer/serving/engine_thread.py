"""The thread that owns a server's engine: it builds it, does what the loop wants between steps, and tells what each brings.

`Hears` is the loop's side. Its methods are called on the loop, one `call_soon_threadsafe` for a step whatever its answers.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from deepinfer.config.errors import Refused

if TYPE_CHECKING:
    from deepinfer.engine.events import TokenEvent
    from deepinfer.engine.stats import EngineStats
    from deepinfer.interfaces import FinishReason
    from deepinfer.serving.jobs import Job
    from deepinfer.serving.served import Served

STATS_S = 1.0  # between two looks at the engine's counters
Tell = Callable[[str], None]  # what the start of an engine is at
Command = Callable[[], None]


class EngineLost(RuntimeError):
    """Nothing can be asked any more."""


class Closing(Exception):
    """The line is closed while ranks start: nobody waits for them."""


class Hears(Protocol):
    """Who is told, on the loop."""

    def starting(self, phase: str) -> None: ...

    def ready(self, served: Served) -> None: ...

    def running(self) -> None:
        """Steps run; after a restart, again."""

    def delivered(self, events: Sequence[TokenEvent], admitted: Sequence[int]) -> None: ...

    def counted(self, stats: EngineStats) -> None: ...

    def failed(self, cause: str, failure: BaseException | None) -> None: ...


class EngineThread:
    """`start(tell)` builds the engine, in this thread. `submit`, `finish` and `close` are for the loop."""

    def __init__(self, start: Callable[[Tell], Served], hears: Hears, loop: asyncio.AbstractEventLoop) -> None:
        self._start, self._hears, self._loop = start, hears, loop
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._in_engine: set[int] = set()  # request ids
        self._closing, self._lost = False, ""
        self._restarting = False
        self._engine: Any = None
        self._nudge: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(
        self, job: Job, priority: int, taken: Callable[[list[int]], None], refused: Callable[[Exception], None]
    ) -> None:
        """Hand over a job; one of the two is called on the loop. Refused with EngineLost, or a ValueError of the engine's."""
        self._do(lambda: self._submit(job, priority, taken, refused))

    def finish(self, request_id: int, reason: FinishReason) -> None:
        """Nobody wants this answer any more."""
        self._do(lambda: self._finish(request_id, reason))

    def close(self) -> None:
        """End the engine after the step that runs."""
        self._closing = True
        self._do(lambda: None)

    def _do(self, command: Command) -> None:
        self._commands.put(command)
        self._nudge()

    def _post(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left who listens
            self._closing = True

    def _run(self) -> None:
        try:
            served = self._start(self._told)
            self._engine = served.engine
            self._nudge = getattr(served.engine, "nudge", self._nudge)
            self._post(self._hears.ready, served)
            _print(served.notices)
            self._serve()
        except Closing:
            pass
        except Exception as error:  # noqa: BLE001 — the outermost loop of this thread; requests end with what it says
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, Refused):
                cause = str(error)
            else:
                traceback.print_exc()
            self._post(self._hears.failed, cause, error)
            self._refuse_all(cause)
        finally:
            if self._engine is not None:
                self._engine.close()

    def _told(self, phase: str) -> None:
        """Hear what a start is at, the first or another; ranks say so several times a second. Raises Closing."""
        if self._closing:
            raise Closing
        self._restarting = self._engine is not None
        self._post(self._hears.starting, phase)

    def _serve(self) -> None:
        looked_s = 0.0
        while not self._closing:
            self._obey(0.0 if self._works else STATS_S)
            if self._works:
                self._step()
            now_s = time.monotonic()
            if now_s - looked_s >= STATS_S:
                looked_s = now_s
                self._look()
            if cause := getattr(self._engine, "cause", ""):
                self._post(self._hears.failed, cause, None)
                return self._refuse_all(cause)
            if self._restarting:
                self._restarting = False
                self._post(self._hears.running)

    @property
    def _works(self) -> bool:
        """Whether steps bring something, or one is still in flight."""
        return bool(self._in_engine) or getattr(self._engine, "has_work", False)

    def _step(self) -> None:
        events = self._engine.step()
        admitted = self._engine.newly_admitted
        if getattr(self._engine, "cause", ""):  # errors that come of the loss are told by `failed`
            events = [each for each in events if each.finish_reason != "error"]
        if events or admitted:
            self._in_engine.difference_update([each.request_id for each in events if each.finish_reason is not None])
            self._post(self._hears.delivered, events, admitted)

    def _look(self) -> None:
        try:
            stats = self._engine.stats()
        except RuntimeError:  # ranks are gone; `lost` says so
            return
        self._post(self._hears.counted, stats)
        _print(self._engine.take_notices())

    def _obey(self, wait_s: float) -> None:
        """Carry out all that the loop wants; waits so long for the first of it."""
        try:
            command = self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait()
            while True:
                command()
                command = self._commands.get_nowait()
        except Empty:
            pass

    def _submit(
        self, job: Job, priority: int, taken: Callable[[list[int]], None], refused: Callable[[Exception], None]
    ) -> None:
        if self._lost:
            return self._post(refused, EngineLost(self._lost))
        try:
            request_ids = self._engine.submit(job.prompt_ids, job.params, priority=priority, cache_salt=job.cache_salt)
        except ValueError as error:
            return self._post(refused, error)
        except BaseException as error:  # a fault of the engine ends it; whoever asked is not forgotten
            self._post(refused, EngineLost(f"{type(error).__name__}: {error}"))
            raise
        self._in_engine.update(request_ids)
        self._post(taken, request_ids)

    def _finish(self, request_id: int, reason: FinishReason) -> None:
        if request_id in self._in_engine and not self._lost:
            self._in_engine.discard(request_id)
            self._engine.finish(request_id, reason)

    def _refuse_all(self, why: str) -> None:
        """Answer whoever asks while nothing is left to ask, until the line is closed."""
        self._lost = why
        while not self._closing:
            self._obey(1.0)


def _print(notices: Sequence[str]) -> None:
    for notice in notices:
        print(f"deepinfer: {notice}", file=sys.stderr)
