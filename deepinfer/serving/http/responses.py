"""/v1/responses: make a response, look at it, continue it, cancel it, delete it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.http.bad_request import form_refusals, refusals
from deepinfer.serving.http.conversations import job_of
from deepinfer.serving.http.errors import ApiError
from deepinfer.serving.http.notices import notice_headers
from deepinfer.serving.http.response_items import listed
from deepinfer.serving.http.response_store import ResponseStore, Stored
from deepinfer.serving.http.responses_runs import Run, Runs
from deepinfer.serving.http.responses_schema import BY_ID, INPUT_ITEMS, RESPONSES
from deepinfer.serving.http.token_logprobs import entries
from deepinfer.serving.responses_events import ResponsesEvents
from deepinfer.serving.responses_request import ResponsesAsk, read_responses

if TYPE_CHECKING:
    from fastapi import FastAPI

    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.http.service import Service
    from deepinfer.serving.jobs import Job

_PATH = "/v1/responses"


def add_routes(app: FastAPI, service: Service) -> None:
    responses = Responses(service)
    service.on_start.append(responses.runs.store.open)
    service.on_close.append(responses.runs.close)
    app.add_api_route(_PATH, responses.create, methods=["POST"], openapi_extra=RESPONSES)
    app.add_api_route(_PATH + "/{response_id}", responses.fetch, methods=["GET"], openapi_extra=BY_ID)
    app.add_api_route(_PATH + "/{response_id}", responses.delete, methods=["DELETE"], openapi_extra=BY_ID)
    app.add_api_route(_PATH + "/{response_id}/cancel", responses.cancel, methods=["POST"], openapi_extra=BY_ID)
    app.add_api_route(
        _PATH + "/{response_id}/input_items", responses.input_items, methods=["GET"], openapi_extra=INPUT_ITEMS
    )


class Responses:
    """The handlers. A response belongs to the API key that asked for it: to any other it does not exist."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self.service = service
        store = ResponseStore(
            None if settings.responses_path is None else Path(settings.responses_path).expanduser(),
            keep_s=settings.responses_keep_s,
            max_bytes=settings.responses_max_bytes,
            max_item_bytes=settings.responses_max_item_bytes,
        )
        self.runs = Runs(store)

    async def create(self, request: Request) -> Response:
        service, owner = self.service, self.service.key_id(request)
        body = await service.body(request)
        ask, model = await service.work(len(body), _read, service, body)
        earlier = await self._earlier(owner, ask)
        size = len(body) + sum(len(row.items) + len(row.response) for row in earlier)
        chat, job, prompt = await service.work(size, _job, service, ask, earlier)
        tokenizer = service.tokenizer
        assert tokenizer is not None, "a conversation was rendered with it"
        top = prompt.params.logprobs or 0
        events = ResponsesEvents(
            ask,
            prompt,
            service.desk.codec,
            response_id=f"resp_{secrets.token_hex(16)}",
            model=model,
            entries=lambda logprobs: entries(logprobs, top, tokenizer),
        )
        headers = notice_headers(prompt.notices)
        with form_refusals(chat):
            answers = await service.ask(
                request, job, dialect="responses", stream=ask.stream, salt=chat.cache_salt, priority=chat.priority
            )
        run = Run(owner, ask, events, answers, self.runs.store)
        if ask.background:
            return service.json(await self.runs.in_background(run), headers=headers)
        if ask.stream:
            return service.stream(request, answers, self.runs.stream(run), headers=headers)
        with form_refusals(chat):
            return service.json(await service.whole(request, answers, self.runs.whole(run)), headers=headers)

    async def fetch(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise ApiError(400, "a response is streamed only while it is made: fetch it without stream", param="stream")
        run = self.runs.find(self.service.key_id(request), response_id)
        if run is not None:
            return self.service.json(run.now())
        return self.service.json((await self._stored(request, response_id)).response)

    async def delete(self, request: Request) -> Response:
        owner, response_id = self.service.key_id(request), request.path_params["response_id"]
        run = self.runs.find(owner, response_id)
        if run is not None:
            await run.forget()
        if not await self.runs.store.delete(owner, response_id) and run is None:
            raise _missing(response_id)
        return self.service.json({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        run = self.runs.find(self.service.key_id(request), response_id)
        if run is not None and (final := await run.cancel()) is not None:
            return self.service.json(final)
        return self.service.json((await self._stored(request, response_id)).response)

    async def input_items(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        run = self.runs.find(self.service.key_id(request), response_id)
        if run is not None:
            return self.service.json(listed(response_id, run.ask.items, request.query_params))
        row = await self._stored(request, response_id)
        return self.service.json(listed(response_id, msgspec.json.decode(row.items), request.query_params))

    async def _stored(self, request: Request, response_id: str) -> Stored:
        row = await self.runs.store.get(self.service.key_id(request), response_id)
        if row is None:
            raise _missing(response_id)
        return row

    async def _earlier(self, owner: str, ask: ResponsesAsk) -> list[Stored]:
        """What the request continues, oldest first."""
        if ask.previous_response_id is None:
            return []
        if self.runs.find(owner, ask.previous_response_id) is not None:
            message = f"the response {ask.previous_response_id} is still being made: wait for it, or cancel it"
            raise ApiError(400, message, param="previous_response_id", code="response_in_progress")
        try:
            rows = await self.runs.store.chain(owner, ask.previous_response_id)
        except KeyError as error:
            raise _missing(
                str(error.args[0]), param="previous_response_id", code="previous_response_not_found"
            ) from error
        except ValueError as error:
            raise ApiError(400, str(error), param="previous_response_id") from error
        return rows


def _read(service: Service, body: bytes) -> tuple[ResponsesAsk, str]:
    """(what is asked, the model's name). Raises ApiError."""
    with refusals():
        ask = read_responses(body)
        return ask, service.model(ask.model)


def _job(service: Service, ask: ResponsesAsk, earlier: list[Stored]) -> tuple[ChatAsk, Job, ChatPrompt]:
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for row in earlier:
        turns.append((f"input of {row.id}", msgspec.json.decode(row.items)))
        turns.append((f"output of {row.id}", msgspec.json.decode(row.response)["output"]))
    with refusals():
        chat = ask.chat(turns)
        return chat, *job_of(service, chat)


def _missing(response_id: str, *, param: str | None = None, code: str = "response_not_found") -> ApiError:
    message = (
        f"there is no response {response_id!r:.80}: it was deleted, it expired (serving.responses_keep_s), it was made with "
        "store=false, or it is another key's"
    )
    return ApiError(404, message, param=param, code=code)
