"""Requests to an application in this process: its answer counts, whatever it raises after it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deepinfer.cli.asgi import post


def answering(status: int, *, whole: bool, error: Exception | None) -> Any:
    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": status, "headers": [(b"X-Request-Id", b"7")]})
        await send({"type": "http.response.body", "body": b"of " + body, "more_body": True})
        if whole:
            await send({"type": "http.response.body", "body": b"."})
        if error is not None:
            raise error

    return app


def test_an_answer_that_is_whole_is_kept_and_the_fault_told(capsys: pytest.CaptureFixture[str]) -> None:
    app = answering(500, whole=True, error=KeyError("a fault of ours"))
    answer = asyncio.run(post(app, "/v1/completions", b"{}"))
    assert (answer.status, answer.body, answer.headers) == (500, b"of {}.", {"X-Request-Id": "7"})
    told = capsys.readouterr().err
    assert "Traceback" in told and "a fault of ours" in told


def test_what_is_no_whole_answer_is_raised() -> None:
    with pytest.raises(KeyError, match="a fault of ours"):
        asyncio.run(post(answering(200, whole=False, error=KeyError("a fault of ours")), "/x", b"{}"))
    with pytest.raises(RuntimeError, match="without an answer"):
        asyncio.run(post(answering(200, whole=False, error=None), "/x", b"{}"))


def test_whoever_is_cancelled_cancels_the_application() -> None:
    ended = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append("app")

    async def leaving() -> None:
        task = asyncio.ensure_future(post(app, "/x", b"{}"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leaving())
    assert ended == ["app"]
