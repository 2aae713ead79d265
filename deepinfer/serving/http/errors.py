"""Errors as clients of each dialect read them: OpenAI's shape, or on paths of /v1/messages Anthropic's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from deepinfer.serving.answers import ENGINE_LOST, SHUTTING_DOWN

if TYPE_CHECKING:
    from deepinfer.serving.answers import Piece

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """What a request is answered with in place of a result. `message` is a sentence; `param` names the part of the body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code, self.retry_after_s = param, code, retry_after_s


def internal_error() -> ApiError:
    """A fault of ours, of which the client gets no details."""
    return ApiError(500, "this is a fault of the server; its log has the details", code="internal_error")


def is_anthropic(path: str) -> bool:
    """Whether clients of this path read Anthropic's errors."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def error_body(path: str, error: ApiError, request_id: str = "") -> dict[str, Any]:
    """The JSON body of an error, in the dialect of `path`."""
    message = error.message.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is no JSON
    if is_anthropic(path):
        kind = error.type or _ANTHROPIC_TYPES.get(error.status, "invalid_request_error")
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
        return body | ({"request_id": request_id} if request_id else {})
    kind = error.type or _OPENAI_TYPES.get(error.status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}}


def error_response(path: str, error: ApiError, request_id: str = "") -> Response:
    """The whole response."""
    headers = {"Retry-After": f"{math.ceil(error.retry_after_s)}"} if error.retry_after_s is not None else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    data = msgspec.json.encode(error_body(path, error, request_id))
    return Response(data, error.status, headers, "application/json")


def stream_error(path: str, error: ApiError) -> bytes:
    """The last event of a stream that cannot go on, in the dialect of `path`."""
    data = msgspec.json.encode(error_body(path, error))
    if is_anthropic(path) or path.startswith("/v1/responses"):
        return b"event: error\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def of_piece(piece: Piece) -> ApiError:
    """The error of an answer that ended with one: 503 where another try may work, 400 for a bad grammar, else
    500."""
    message = piece.error or "the answer ended early"
    if piece.error_code in (ENGINE_LOST, SHUTTING_DOWN):
        return ApiError(503, message, code=piece.error_code, retry_after_s=5.0)
    if message.startswith("grammar: ") and not piece.token_ids:  # it could not be compiled
        return ApiError(400, message, code="invalid_grammar")
    return ApiError(500, message, code=piece.error_code)
