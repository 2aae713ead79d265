"""/v1/completions: texts or token ids go on, without any chat format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.completion_request import CompletionCall, completion_call
from deepinfer.serving.http.bad_request import form_refusals, refusals
from deepinfer.serving.http.completion_answer import CompletionAnswer
from deepinfer.serving.http.errors import ApiError
from deepinfer.serving.http.notices import notice_headers
from deepinfer.serving.http.openai_shapes import DONE, new_id, now
from deepinfer.serving.http.reading_loop import Read, read_all, read_answers
from deepinfer.serving.http.tokens import json_body
from deepinfer.serving.openai_body import CompletionBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from fastapi import FastAPI

    from deepinfer.serving.answers import Answers, Piece
    from deepinfer.serving.http.service import Service

PATH = "/v1/completions"


def add_routes(app: FastAPI, service: Service) -> None:
    async def completions(request: Request) -> Response:
        data = await service.body(request)
        tokenizer = service.tokenizer
        if tokenizer is None:
            raise ApiError(400, "this model has no tokenizer.json, so it has no texts to tell")
        call, model = await service.work(len(data), _prepared, service, data)
        answer = CompletionAnswer(call, tokenizer, {"id": new_id("cmpl"), "created": now(), "model": model})
        headers = notice_headers(call.notices)
        with form_refusals(call):
            answers = await _asked(request, service, call)
            if not call.stream:
                whole = await service.whole(request, answers, _whole(service, answer, answers))
                return service.json(whole, headers=headers)
        return service.stream(request, answers, _events(service, call, answer, answers), headers=headers)

    extra = json_body(CompletionBody)
    app.add_api_route(PATH, completions, methods=["POST"], response_class=Response, openapi_extra=extra)


def _prepared(service: Service, data: bytes) -> tuple[CompletionCall, str]:
    """(what is asked, the model's name). Raises ApiError."""
    with refusals():
        most = service.settings.max_answers
        call = completion_call(data, service.desk, service.default_params, asked=service.asked, max_answers=most)
        return call, service.model(call.model)


async def _asked(request: Request, service: Service, call: CompletionCall) -> list[Answers]:
    """All prompts in the engine, or none."""
    taken: list[Answers] = []
    try:
        for job in call.jobs:
            one = await service.ask(
                request, job, dialect="completions", stream=call.stream, salt=call.cache_salt, priority=call.priority
            )
            taken.append(one)
    except BaseException:
        for one in taken:
            one.abort()
        raise
    return taken


async def _whole(service: Service, answer: CompletionAnswer, answers: Sequence[Answers]) -> dict[str, Any]:
    await read_all(answers, answer.add)
    return await service.work(answer.whole_size(), answer.whole)


async def _events(
    service: Service, call: CompletionCall, answer: CompletionAnswer, answers: Sequence[Answers]
) -> AsyncIterator[bytes]:
    def push(prompt: int, piece: Piece) -> Read | Awaitable[Read]:
        size = answer.event_size(prompt, piece)
        return service.work(size, answer.event, prompt, piece) if size else answer.event(prompt, piece)

    with form_refusals(call):
        async for told in read_answers(answers, push):
            yield told
    yield answer.usage_event() + DONE
