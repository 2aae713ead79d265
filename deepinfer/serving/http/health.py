"""Whether the server works: /live, /health, /health_generate; and what it is: /version, /v1/models, /v1/plan."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

import deepinfer
from deepinfer.interfaces import SamplingParams
from deepinfer.serving.http.errors import ApiError, of_piece
from deepinfer.serving.jobs import Job

if TYPE_CHECKING:
    from fastapi import FastAPI

    from deepinfer.serving.http.service import Service

ANTHROPIC = "anthropic-version"  # a header that every client of Anthropic's API sends


def add_routes(app: FastAPI, service: Service) -> None:
    """Paths that need no model but /health_generate."""

    async def live(request: Request) -> Response:
        """Whether this process can still come to something: 503 tells an orchestrator to start it again."""
        return service.json({"status": service.line.state}, 503 if service.line.state == "failed" else 200)

    async def health(request: Request) -> Response:
        """200 where requests are served; else 503 with what the server is at, and for how long."""
        line = service.line
        body: dict[str, Any] = {"status": line.state, "phase": line.phase, "seconds": round(line.seconds, 1)}
        if line.cause:
            body["cause"] = line.cause
        if line.state == "ready":
            return service.json(body)
        return service.json(body, 503, {"Retry-After": "2"} if line.state != "failed" else {})

    async def health_generate(request: Request) -> Response:
        """Generates one token, and says how long it took."""
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        job = Job(prompt_ids=[service.eos_token_ids[0] if service.eos_token_ids else 0], params=params)
        within_s = service.settings.health_generate_s
        answers = await service.ask(request, job, dialect="health", stream=False)
        try:
            async with asyncio.timeout(within_s):
                while pieces := await answers.next():
                    if pieces[-1].finish_reason == "error":
                        raise of_piece(pieces[-1])
        except TimeoutError as error:
            message = f"no token came within {within_s:g} s (serving.health_generate_s)"
            raise ApiError(503, message, code="too_slow", retry_after_s=within_s) from error
        finally:
            answers.abort()
        return service.json({"status": "ready", "ms": answers.timings.total_ms})

    async def version(request: Request) -> Response:
        return service.json({"version": deepinfer.__version__})

    async def models(request: Request) -> Response:
        if ANTHROPIC in request.headers:
            data = [_anthropic_model(service, name) for name in service.model_names]
            ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
            return service.json({"data": data, "has_more": False, **ends})
        return service.json({"object": "list", "data": [_model(service, name) for name in service.model_names]})

    async def model(request: Request) -> Response:
        asked = request.path_params["model_id"]
        service.model(asked)
        told = _anthropic_model if ANTHROPIC in request.headers else _model
        return service.json(told(service, asked))

    async def plan(request: Request) -> Response:
        return service.json(service.plan_json)

    for path, function in (
        ("/live", live),
        ("/health", health),
        ("/health_generate", health_generate),
        ("/version", version),
        ("/v1/models", models),
        ("/v1/models/{model_id:path}", model),
        ("/v1/plan", plan),
    ):
        app.add_api_route(path, function, methods=["GET"], response_class=Response)
        app.add_api_route(path, function, methods=["HEAD"], response_class=Response, include_in_schema=False)


def _anthropic_model(service: Service, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(int(service.started_s), UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _model(service: Service, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"id": name, "object": "model", "created": int(service.started_s), "owned_by": "deepinfer"}
    if service.line.served is not None:
        found["max_model_len"] = service.max_model_len
    return found
