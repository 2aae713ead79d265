"""/v1/chat/completions: OpenAI's dialect, with DeepSeek's `thinking` and `reasoning_content`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.chat_request import ChatCall, chat_call
from deepinfer.serving.http.bad_request import form_refusals, refusals
from deepinfer.serving.http.chat_answer import ChatAnswer
from deepinfer.serving.http.conversations import job_of
from deepinfer.serving.http.notices import notice_headers
from deepinfer.serving.http.openai_shapes import DONE, new_id, now
from deepinfer.serving.http.reading_loop import read_all, read_answers
from deepinfer.serving.http.tokens import json_body
from deepinfer.serving.openai_body import ChatBody

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from deepinfer.serving.answers import Answers
    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.http.service import Service
    from deepinfer.serving.jobs import Job

PATH = "/v1/chat/completions"


def add_routes(app: FastAPI, service: Service) -> None:
    async def chat(request: Request) -> Response:
        data = await service.body(request)
        call, model, job, prompt = await service.work(len(data), _prepared, service, data)
        ask, tokenizer = call.ask, service.tokenizer
        assert tokenizer is not None, "a chat was rendered"
        answer = ChatAnswer(
            call,
            prompt,
            service.desk.codec.answer_reader,
            tokenizer,
            response_id=new_id("chatcmpl"),
            created=now(),
            model=model,
        )
        headers = notice_headers(prompt.notices)
        with form_refusals(ask):
            answers = await service.ask(
                request, job, dialect="chat", stream=ask.stream, salt=ask.cache_salt, priority=ask.priority
            )
            if not ask.stream:
                return service.json(await service.whole(request, answers, _whole(answer, answers)), headers=headers)
        return service.stream(request, answers, _events(ask, answer, answers), headers=headers)

    app.add_api_route(PATH, chat, methods=["POST"], response_class=Response, openapi_extra=json_body(ChatBody))


def _prepared(service: Service, data: bytes) -> tuple[ChatCall, str, Job, ChatPrompt]:
    """(what is asked, the model's name, the job, its prompt). Raises ApiError."""
    with refusals():
        call = chat_call(data)
        model = service.model(call.ask.model)
        return call, model, *job_of(service, call.ask)


async def _whole(answer: ChatAnswer, answers: Answers) -> dict[str, Any]:
    await read_all([answers], answer.add)
    return answer.whole()


async def _events(ask: ChatAsk, answer: ChatAnswer, answers: Answers) -> AsyncIterator[bytes]:
    with form_refusals(ask):
        async for told in read_answers([answers], answer.events):
            yield told
    yield answer.usage_event() + DONE
