"""The client of loads against a server that cuts its answers anywhere, and servers that are no help."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from deepinfer.cli.bench_http import Client, ConnectionLost, Events, Reply

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def talk(handler: Handler, use: Callable[[Client], Awaitable[object]], path: str = "") -> object:
    """What `use` gives with a client of a server that runs `handler` for each request; its connections are counted."""

    async def both() -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    length = next(
                        (int(line[16:]) for line in head.split(b"\r\n") if line[:16] == b"content-length: "), 0
                    )
                    await handler(head + await reader.readexactly(length), writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        connections: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}")
        try:
            return await use(client), len(connections)
        finally:
            client.close()
            server.close()

    return asyncio.run(both())


def chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("at_once", [1, 2, 7, 1000])
def test_events_come_whole_wherever_the_network_cuts(at_once: int) -> None:
    wire = chunked(
        b'data: {"a":1}\n\n: ping\n\nda', b"ta: two\r\n\r\nevent: x\ndata: 3\ndata: 4\n\n", b"data: [DONE]\n\n"
    )
    events, found = Events(), list[bytes]()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(wire), at_once):
            writer.write(wire[start : start + at_once])
            await writer.drain()
            await asyncio.sleep(0)

    async def ask(client: Client) -> Reply:
        return await client.post("/x", b"{}", lambda data: found.extend(events.push(data)))

    (reply, _) = talk(answer, ask)  # type: ignore[misc]
    assert (reply.status, reply.body) == (200, b"")
    assert found == [b'{"a":1}', b"two", b"3\n4", b"[DONE]"]


def test_a_connection_is_used_again_and_a_refusal_has_its_body() -> None:
    seen = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(b"HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Length: 4\r\n\r\nbusy")

    async def ask(client: Client) -> list[Reply]:
        return [await client.post("/x", b"[1]", lambda data: pytest.fail("no 200")), await client.get("/y")]

    replies, connections = talk(answer, ask, "/base/")  # type: ignore[misc]
    assert [(reply.status, reply.body, reply.headers["retry-after"]) for reply in replies] == [(429, b"busy", "3")] * 2
    assert connections == 1
    assert seen[0].startswith(b"POST /base/x HTTP/1.1\r\n") and seen[0].endswith(b"\r\n\r\n[1]")
    assert seen[1].startswith(b"GET /base/y HTTP/1.1\r\n")


def test_a_server_that_closes_an_idle_connection_is_asked_again_and_a_cut_answer_is_an_error() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/cut" in request:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def ask(client: Client) -> list[bytes]:
        found = []
        for _ in range(2):
            found.append((await client.get("/")).body)
        with pytest.raises(ConnectionLost):
            await client.get("/cut")
        return found

    assert talk(answer, ask) == ([b"ok", b"ok"], 3)


def test_a_call_that_is_cancelled_closes_its_connection() -> None:
    gone = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.001)
        gone.append(True)

    async def ask(client: Client) -> None:
        got = asyncio.Event()
        task = asyncio.create_task(client.post("/", b"", lambda data: got.set()))
        await got.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            while not gone:
                await asyncio.sleep(0.001)

    talk(answer, ask)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        Client(url)
