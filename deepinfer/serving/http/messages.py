"""POST /v1/messages and /v1/messages/count_tokens: the Messages API of Anthropic."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.http.bad_request import refusals
from deepinfer.serving.http.conversations import job_of, prompt_of
from deepinfer.serving.http.messages_schema import COUNT_TOKENS, MESSAGES
from deepinfer.serving.http.notices import notice_headers
from deepinfer.serving.http.reading_loop import Read, read_all, read_answers
from deepinfer.serving.messages_events import MessagesEvents
from deepinfer.serving.messages_request import read_count_tokens, read_messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from fastapi import FastAPI

    from deepinfer.serving.answers import Answers, Piece
    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.http.service import Service
    from deepinfer.serving.jobs import Job

_PATH = "/v1/messages"


def add_routes(app: FastAPI, service: Service) -> None:
    async def messages(request: Request) -> Response:
        return await _messages(service, request)

    async def count_tokens(request: Request) -> Response:
        return await _count_tokens(service, request)

    app.add_api_route(_PATH, messages, methods=["POST"], openapi_extra=MESSAGES)
    app.add_api_route(f"{_PATH}/count_tokens", count_tokens, methods=["POST"], openapi_extra=COUNT_TOKENS)


async def _messages(service: Service, request: Request) -> Response:
    body = await service.body(request)
    ask, model, job, prompt = await service.work(len(body), _prepared, service, body)
    events = MessagesEvents(prompt, service.desk.codec, f"msg_{secrets.token_hex(12)}", model)
    headers = notice_headers(prompt.notices)
    answers = await service.ask(
        request, job, dialect="messages", stream=ask.stream, salt=ask.cache_salt, priority=ask.priority
    )
    if not ask.stream:
        return service.json(await service.whole(request, answers, _whole(events, answers)), headers=headers)
    return service.stream(request, answers, _stream(events, answers), headers=headers)


def _prepared(service: Service, body: bytes) -> tuple[ChatAsk, str, Job, ChatPrompt]:
    """(what is asked, the model's name, the job, its prompt). Raises ApiError."""
    with refusals():
        ask = read_messages(body)
        model = service.model(ask.model)
        return ask, model, *job_of(service, ask)


async def _count_tokens(service: Service, request: Request) -> Response:
    body = await service.body(request)
    return service.json({"input_tokens": await service.work(len(body), _num_tokens, service, body)})


def _num_tokens(service: Service, body: bytes) -> int:
    with refusals():
        ask = read_count_tokens(body)
        service.model(ask.model)
        return len(prompt_of(service, ask).prompt_ids)


async def _stream(events: MessagesEvents, answers: Answers) -> AsyncIterator[bytes]:
    def push(_: int, piece: Piece) -> Read:
        return events.push(piece), events.reader.stopped

    async for told in read_answers([answers], push):
        yield told


async def _whole(events: MessagesEvents, answers: Answers) -> dict[str, Any]:
    def push(_: int, piece: Piece) -> Read:
        events.add(piece)
        return b"", events.reader.stopped

    await read_all([answers], push)
    return events.whole()
