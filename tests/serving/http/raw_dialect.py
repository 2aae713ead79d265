"""A dialect for tests of what all dialects share: token ids in, token ids out, at /raw and, with Anthropic's errors, at
/v1/messages/raw."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.answers import Answers
from deepinfer.serving.http.errors import of_piece
from deepinfer.serving.http.service import Service
from deepinfer.serving.http.tokens import decoded
from deepinfer.serving.jobs import Job
from deepinfer.structured import Regex


class Raw(msgspec.Struct, forbid_unknown_fields=True):
    prompt: tuple[int, ...] = (5, 6, 7)
    max_tokens: int = 4
    n: int = 1
    stream: bool = False
    salt: str = ""
    regex: str | None = None
    seed: int = 7


def add_raw(app: FastAPI, service: Service) -> None:
    async def raw(request: Request) -> Response:
        asked = decoded(await service.body(request), Raw)
        grammar = None if asked.regex is None else Regex(asked.regex)
        params = msgspec.structs.replace(
            service.default_params,
            max_tokens=asked.max_tokens,
            n=asked.n,
            ignore_eos=grammar is None,
            grammar=grammar,
            seed=asked.seed,
        )
        job = Job(prompt_ids=list(asked.prompt), params=params)
        answers = await service.ask(request, job, dialect="raw", stream=asked.stream, salt=asked.salt)
        if asked.stream:
            return service.stream(request, answers, events(answers))
        return service.json(await service.whole(request, answers, whole(answers)))

    for path in ("/raw", "/v1/messages/raw"):
        app.add_api_route(path, raw, methods=["POST"])


async def events(answers: Answers) -> AsyncIterator[bytes]:
    while pieces := await answers.next():
        for piece in pieces:
            if piece.finish_reason == "error":
                raise of_piece(piece)
            told = {"index": piece.index, "token_ids": piece.token_ids, "finish_reason": piece.finish_reason}
            yield b"data: " + msgspec.json.encode(told) + b"\n\n"


async def whole(answers: Answers) -> dict[str, Any]:
    token_ids: dict[int, list[int]] = {}
    while pieces := await answers.next():
        for piece in pieces:
            if piece.finish_reason == "error":
                raise of_piece(piece)
            token_ids.setdefault(piece.index, []).extend(piece.token_ids)
    return {"token_ids": [token_ids[index] for index in sorted(token_ids)], "cached_tokens": answers.cached_tokens}


def read_events(text: str) -> list[dict[str, Any]]:
    """The data of every event of a stream."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """Wait for what a server comes to by itself."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s"
        time.sleep(0.002)
