"""One uvicorn process around a service: it listens at once, drains on SIGTERM, and ends at the second signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from deepinfer.config.errors import ExitCode
from deepinfer.serving.http.app import create_app
from deepinfer.serving.http.protocol import guarded

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

    from deepinfer.serving.http.service import Service

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LAST_WORDS_S = 2.0  # for the last events of aborted streams to go out


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: ours drain first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut_off(self) -> None:
        """Hang up on whoever is still there."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class Server:
    """`listener` is bound and listens already. `run` returns the exit code: 0 after a drain, that of the engine's failure where
    it never became ready."""

    def __init__(self, service: Service, listener: socket.socket, app: ASGIApp | None = None) -> None:
        self.service, self._listener = service, listener
        self.on_listening: Callable[[], None] = lambda: None  # once whatever is kept on disk is open
        self._stopping: asyncio.Event | None = None
        self._uvicorn = _Uvicorn(config(service, app or create_app(service)))

    def run(self, *, signals: bool = True) -> int:
        """Serve until a signal, or `stop`."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(self._main(signals))

    def stop(self) -> None:
        """What SIGTERM does, from the loop's thread."""
        if self._stopping is not None:
            self._stopping.set()

    async def _main(self, signals: bool) -> int:
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS if signals else ():
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup does, and shells for what they start behind them
                loop.add_signal_handler(number, self._signalled)
        await self.service.open()
        serving = asyncio.ensure_future(self._uvicorn.serve([self._listener]))
        self.on_listening()
        stopping = asyncio.ensure_future(self._stopping.wait())
        starting = asyncio.ensure_future(_started(self.service))
        await asyncio.wait([stopping, starting, serving], return_when=asyncio.FIRST_COMPLETED)
        started = self.service.line.served is not None
        if started:  # one that failed ends the server; an engine that is lost later does not
            await asyncio.wait([stopping, serving], return_when=asyncio.FIRST_COMPLETED)
        code = ExitCode.OTHER if self.service.line.state == "failed" else ExitCode.OK
        await self._end(serving)
        for task in (stopping, starting):
            task.cancel()
        return code

    async def _end(self, serving: asyncio.Future[Any]) -> None:
        service, within_s = self.service, self.service.settings.drain_s
        if not await service.drain(within_s):
            print(f"deepinfer: requests that were not through within {within_s:g} s were ended", file=sys.stderr)
        self._uvicorn.should_exit = True
        await asyncio.wait([serving], timeout=LAST_WORDS_S)
        self._uvicorn.cut_off()
        await serving
        await service.close()

    def _signalled(self) -> None:
        assert self._stopping is not None, "handlers are set once the loop runs"
        if self._stopping.is_set():
            print("deepinfer: a second signal: ended at once", file=sys.stderr, flush=True)
            os._exit(ExitCode.TERMINATED)  # children end with this process: they hold a pipe to it
        within_s, num = self.service.settings.drain_s, self.service.admission.num_open
        waits = f"; {num} running requests have {within_s:g} s" if num else ""
        print(f"deepinfer: told to stop{waits}; a second signal ends at once", file=sys.stderr, flush=True)
        self._stopping.set()


def config(service: Service, app: ASGIApp) -> uvicorn.Config:
    """uvicorn's settings for a service; the limits that it lacks are in `protocol` and `door`."""
    settings = service.settings
    return uvicorn.Config(
        app,
        http=guarded(settings),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(settings.keep_alive_s)),
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loop; asyncio's own where there is none (Windows)."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _started(service: Service) -> None:
    while service.line.state == "starting":
        await asyncio.sleep(0.02)
