"""A small HTTP/1.1 client for loads: thousands of streams on one event loop, a callback a chunk, connections used again.

It knows POST and GET, chunked bodies and server-sent events, and nothing of redirects, cookies and compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

CONNECT_S = 30.0
OnData = Callable[[bytes], None]


class ConnectionLost(OSError):
    """The server closed the connection before its answer was whole."""


class Reply(Struct):
    """An answer; `body` is empty where an `on_data` took it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


class _Connection(asyncio.Protocol):
    """One connection with at most one answer under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.heard = False  # something came back since the newest request
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Reply] | None = None
        self._on_data: OnData | None = None
        self._reply, self._parts = Reply(0, {}), list[bytes]()

    async def send(self, message: bytes, on_data: OnData | None) -> Reply:
        """One request and its whole answer. Raises ConnectionLost; a cancelled call closes the connection."""
        assert self.transport is not None and self._waiter is None, "one request at a time"
        self._waiter = asyncio.get_running_loop().create_future()
        self._on_data, self.heard, self._reply, self._parts = on_data, False, Reply(0, {}), []
        self.transport.write(message)
        try:
            return await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = None

    def close(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._fail(ConnectionLost(str(error) if error else "the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fail(cause if isinstance(cause, Exception) else ConnectionLost(f"no HTTP: {error}"))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._on_data is not None and self._reply.status == 200:
            self._on_data(data)
        else:
            self._parts.append(data)

    def on_message_complete(self) -> None:
        self._reply.body = b"".join(self._parts)
        if not self._parser.should_keep_alive():
            self.closed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._reply)

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class Client:
    """Of one server, on the running event loop. `base_url` may end in a path. Raises ValueError for what is none."""

    def __init__(self, base_url: str, *, api_key: str = "") -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{base_url!r} is no address of a server: write it as http://HOST:PORT")
        self._host, self._tls = url.hostname, ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        self._path = url.path.rstrip("/")
        host = url.netloc.rpartition("@")[2]
        key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._head = f"host: {host}\r\naccept: */*\r\n{key}"
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, on_data: OnData | None = None, headers: str = "") -> Reply:
        """`on_data` takes the body of a 200 as it comes. `headers` are whole lines. Raises OSError."""
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}"
        return await self._send("POST", path, head, body, on_data)

    async def get(self, path: str) -> Reply:
        """Raises OSError."""
        return await self._send("GET", path, "", b"", None)

    async def send(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Reply:
        """A request of any method. Raises OSError."""
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}" if body else headers
        return await self._send(method, path, head, body, None)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, method: str, path: str, head: str, body: bytes, on_data: OnData | None) -> Reply:
        message = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{head}\r\n".encode("latin-1") + body
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            try:
                return await self._on(connection, message, on_data)
            except ConnectionLost:
                if connection.heard:
                    raise  # else the server closed it while it lay idle: as if it had never been there
        return await self._on(await self._connect(), message, on_data)

    async def _on(self, connection: _Connection, message: bytes, on_data: OnData | None) -> Reply:
        reply = await connection.send(message, on_data)
        if connection.closed:
            connection.close()
        else:
            self._idle.append(connection)
        return reply

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        made = loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        _, connection = await asyncio.wait_for(made, CONNECT_S)
        return connection


class Events:
    """Cuts a body of server-sent events into the payloads of their data lines."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """Payloads of the events that are whole now; comments and other fields are left out."""
        *whole, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        return [payload for event in whole if (payload := _payload(event))]


def _payload(event: bytes) -> bytes:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
