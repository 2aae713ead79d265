"""A server to test against, in a thread. A module of its own: `conftest` names another one once more folders are collected."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
from raw_dialect import add_raw, until

from deepinfer.cli.serve_start import service_of
from deepinfer.config.compose import load_with_choices
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve
from deepinfer.serving.http.access_log import AccessLog
from deepinfer.serving.http.app import create_app
from deepinfer.serving.http.server import Server
from deepinfer.serving.http.service import Service

TINY = ("model=v41_tiny", "hardware=cpu")
FAKE = (*TINY, "executor=simulated", "executor.step_time_s=0.001", "cache.num_blocks=512", "scheduler.max_num_seqs=32")
PATIENCE_S = 300.0  # what takes longer hangs, also on a busy machine


class Running:
    """A server in a thread of its own. `url` is where it listens; `model` the name that it is asked by."""

    def __init__(
        self, *overrides: str, in_process: bool = True, change: Callable[[Service], None] = lambda service: None
    ) -> None:
        spec, choices = load_with_choices(*overrides)
        self.plan = resolve(spec, probe(spec), choices)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = listener.getsockname()[1]
        self.url, self.model = f"http://127.0.0.1:{self.port}", self.plan.model.name
        self.service = service_of(self.plan, spec.serving, in_process=in_process)
        self.service.on_start.append(lambda: setattr(self, "loop", asyncio.get_running_loop()))
        change(self.service)
        self.log = io.StringIO()
        log = AccessLog(on=spec.serving.access_log, out=self.log)
        self.server = Server(self.service, listener, create_app(self.service, log, [add_raw]))
        self.code: int | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.server.run(signals=False)

    def wait_ready(self, within_s: float = PATIENCE_S) -> Running:
        until(lambda: self.code is not None or self.health()[0] == 200, within_s)
        assert self.code is None, f"the server ended: {self.service.line.cause}"
        return self

    def health(self) -> tuple[int, dict[str, Any]]:
        reply = httpx.get(f"{self.url}/health", timeout=PATIENCE_S)
        return reply.status_code, reply.json()

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"} | more.pop("headers", {})
        return httpx.post(f"{self.url}{path}", content=data, headers=headers, timeout=PATIENCE_S, **more)

    def lines(self) -> list[dict[str, Any]]:
        """The access log so far."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def call(self, function: Callable[[], Any]) -> Any:
        """Run something on the server's loop, and give what it gives."""

        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def stop(self, *, wait: bool = True) -> None:
        """What SIGTERM does."""
        if self._thread.is_alive() and self.loop is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                self.loop.call_soon_threadsafe(self.server.stop)
        if wait:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "the server did not end"
