"""Streams of server-sent events, sent as raw ASGI messages: one task for a request, none for a token.

The writer waits for the socket (`send` does, once its buffer is full). Meanwhile news is merged at the answers, so that a slow
reader holds token ids and no text; one that takes nothing at all is cut off by `protocol`. A stream that is silent for long
says that it lives, for whoever stands between.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from deepinfer.serving.http.errors import ApiError, error_response, internal_error, is_anthropic, stream_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Receive, Scope, Send

    from deepinfer.serving.answers import Answers

PING, ANTHROPIC_PING = b": ping\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """`chunks` are whole events; after `ping_s` without one, a ping goes out. The answers are aborted however the stream ends
    before they do.

    An ApiError of `chunks` is the last event, in the dialect of the path.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        answers: Sequence[Answers],
        headers: dict[str, str] | None = None,
        *,
        ping_s: float = 10.0,
    ) -> None:
        super().__init__(None, 200, HEADERS | (headers or {}))
        del self.headers["content-length"]
        self._chunks, self._answers = chunks, answers
        self._writer: asyncio.Task[None] | None = None
        self._client_gone = self._begun = self._sending = False
        self._ping_s, self._sent_s = ping_s, time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._writer = asyncio.current_task()
        watcher = asyncio.ensure_future(self._watch(scope, receive, send))
        try:
            await self._write(scope, receive, send)
        except asyncio.CancelledError:
            if not self._client_gone:
                raise
        finally:
            self._writer = None
            watcher.cancel()
            for answers in self._answers:
                answers.abort()

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What goes wrong before the first event is answered with its own status, later with a last event."""
        chunks = self._chunks
        try:
            async for chunk in chunks:
                await self._send(send, chunk)
        except ApiError as error:
            await self._end(error, scope, receive, send)
            return
        except Exception:
            await self._end(internal_error(), scope, receive, send)
            raise
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, chunk: bytes, *, more: bool = True) -> None:
        self._sending = True  # may wait for the socket; nobody else writes meanwhile
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": chunk, "more_body": more})
        self._sending, self._sent_s = not more, time.monotonic()

    async def _end(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._begun:
            await self._send(send, stream_error(scope["path"], error), more=False)
        else:
            self._sending = True
            await error_response(scope["path"], error, scope["state"]["request_id"])(scope, receive, send)

    async def _watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until the client goes: nobody reads any more. Pings meanwhile."""
        ping = ANTHROPIC_PING if is_anthropic(scope["path"]) else PING
        while True:
            try:
                async with asyncio.timeout(max(0.0, self._sent_s + self._ping_s - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                if self._sending:
                    self._sent_s = time.monotonic()  # look again later
                elif time.monotonic() - self._sent_s >= self._ping_s:
                    await self._send(send, ping)
                continue
            if message["type"] == "http.disconnect":
                break
        if self._writer is not None:
            self._client_gone = True
            scope["state"].setdefault("ended", "client_gone")
            for answers in self._answers:
                answers.abort()
            self._writer.cancel()
