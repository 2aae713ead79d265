"""A request to an ASGI application in this process, without a socket: what the server answers, and nothing else in between."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any

from msgspec import Struct


class Answer(Struct):
    status: int
    headers: dict[str, str]
    body: bytes


async def post(app: Any, path: str, body: bytes) -> Answer:
    """The whole answer to a JSON body. An exception of an application that has answered nevertheless is told on stderr, as
    servers do it; otherwise it is raised."""
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
        "state": {},
    }
    answer, parts, asked, is_whole = Answer(0, {}, b""), list[bytes](), [body], False

    async def receive() -> dict[str, Any]:
        if not asked:
            await asyncio.Event().wait()  # whoever asks stays until the answer is there
        return {"type": "http.request", "body": asked.pop(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal is_whole
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            is_whole = not message.get("more_body", False)

    ended = await asyncio.gather(app(scope, receive, send), return_exceptions=True)
    fault: BaseException | None = ended[0]
    if not is_whole:
        raise fault or RuntimeError(f"POST {path} ended without an answer")
    if fault is not None:
        traceback.print_exception(fault, file=sys.stderr)
    answer.body = b"".join(parts)
    return answer
