"""The ASGI application: all routes, behind one door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import deepinfer
from deepinfer.serving.http import chat, completions, health, messages, metrics, page, responses, tokens, tracing
from deepinfer.serving.http.access_log import AccessLog
from deepinfer.serving.http.door import Door
from deepinfer.serving.http.errors import ApiError, error_response, internal_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Scope

    from deepinfer.serving.http.service import Service

Routes = Callable[[FastAPI, "Service"], None]
PARTS = (health, tokens, chat, completions, responses, messages, metrics, tracing, page)


def create_app(service: Service, log: AccessLog | None = None, more: Sequence[Routes] = ()) -> ASGIApp:
    """The application of a service; `more` adds routes of one's own. It neither opens nor closes the service: whoever runs it
    does."""
    app = FastAPI(
        title="deepinfer", version=deepinfer.__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    for add_routes in (*(module.add_routes for module in PARTS), *more):
        add_routes(app, service)
    app.add_exception_handler(ApiError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _no_route)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _broken)
    origins = list(service.settings.cors_origins)
    shared = {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "DELETE"],
        "allow_headers": ["*"],
        "expose_headers": ["x-request-id", "request-id", "retry-after", "x-deepinfer-notices"],
    }
    if origins:
        app.add_middleware(CORSMiddleware, **shared)  # type: ignore[arg-type]
    log = log or AccessLog(on=service.settings.access_log)
    service.on_close.append(log.close)

    def told(scope: Scope, status: int, seconds: float, sent_bytes: int) -> None:
        route = scope.get("route")
        service.metrics.http(scope["method"], getattr(route, "path", ""), status, seconds)
        for hook in service.on_http:
            hook(scope, status, seconds)
        log(scope, status, seconds, sent_bytes)

    def crossed(response: ASGIApp) -> ASGIApp:
        return CORSMiddleware(response, **shared) if origins else response  # type: ignore[arg-type]

    return Door(app, service, told, crossed)


async def _refused(request: Request, error: ApiError) -> Response:
    return error_response(request.url.path, error, request.state.request_id)


async def _no_route(request: Request, error: HTTPException) -> Response:
    """404 and 405 in the dialect of the path, with a sentence."""
    path, method = request.url.path, request.method
    messages = {
        404: f"there is no {path} here; /openapi.json lists what there is",
        405: f"{path} does not take {method}",
    }
    told = ApiError(error.status_code, messages.get(error.status_code, str(error.detail)))
    response = error_response(path, told, request.state.request_id)
    response.headers.update(error.headers or {})
    return response


async def _broken(request: Request, error: Exception) -> Response:
    """A fault of ours: its traceback goes to stderr, and the client gets no part of it."""
    return error_response(request.url.path, internal_error(), request.state.request_id)
