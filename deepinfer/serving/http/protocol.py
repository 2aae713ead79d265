"""uvicorn's HTTP/1.1 with the limits that it lacks: headers come whole within a time and a size,
and who does not read is cut off.

Framing is llhttp's, in its strict mode: a request with both Content-Length and Transfer-Encoding, or two lengths, is refused,
so that nobody smuggles a second one past a proxy.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    from deepinfer.config.serving import Serving


class GuardedProtocol(HttpToolsProtocol):
    """The limits are set on a subclass: see `guarded`."""

    header_timeout_s = slow_reader_s = 10.0
    max_header_bytes = max_connections = 65_536
    _timer: asyncio.TimerHandle | None = None  # for headers
    _reader_timer: asyncio.TimerHandle | None = None
    _header_bytes = _unfinished_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader_timer = self.loop.call_later(self.slow_reader_s, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._watch_headers()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unwatch()
        if len(self.connections) > self.max_connections:
            self._refuse(b"503 Service Unavailable", b"too many connections are open (serving.max_connections)")
        elif self._header_bytes <= self.max_header_bytes:
            super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_in_headers = self._timer is not None
        super().data_received(data)
        if was_in_headers and self._timer is not None:  # the parser tells of a header once it is whole
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > self.max_header_bytes:
                self._refuse_headers()
        if self._timer is None and self._is_idle and not self.transport.is_closing():
            self._watch_headers()  # what came was no request yet

    def _count(self, size: int) -> None:
        before, self._header_bytes = self._header_bytes, self._header_bytes + size
        if before <= self.max_header_bytes < self._header_bytes:
            self._refuse_headers()

    def _refuse_headers(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large (serving.max_header_bytes)")

    def _watch_headers(self) -> None:
        self._unwatch()
        self._timer = self.loop.call_later(self.header_timeout_s, self._too_slow)

    def _unwatch(self) -> None:
        self._unfinished_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(b"408 Request Timeout", b"no whole request came in time (serving.header_timeout_s)")

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _cut_off(self) -> None:
        """The client has read nothing for too long: what waits for it is dropped with the connection."""
        if self.cycle is not None:
            self.cycle.scope["state"].setdefault("ended", "slow_reader")
        self.transport.abort()

    def _refuse(self, status: bytes, why: bytes) -> None:
        """Answer without the application, and hang up. Nothing is written into a response that is being sent; a request that
        has got no answer yet ends."""
        if self.transport.is_closing():
            return
        if not self._is_idle:
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = b'{"error":{"message":"' + why + b'","type":"invalid_request_error","param":null,"code":null}}'
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(body)) + body)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", b"this is no HTTP request")


def guarded(settings: Serving) -> type[GuardedProtocol]:
    """The protocol with the limits of a server."""
    names = ("header_timeout_s", "max_header_bytes", "max_connections", "slow_reader_s")
    return type("GuardedProtocol", (GuardedProtocol,), {name: getattr(settings, name) for name in names})
