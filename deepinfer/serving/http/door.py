"""What every HTTP request passes: an id, a key, limits of its body, and a line in the log. Plain ASGI, so that a streamed
token costs one call here."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import TYPE_CHECKING, Any

from deepinfer.serving.http.auth import secret_of
from deepinfer.serving.http.errors import ApiError, error_response, is_anthropic
from deepinfer.serving.http.notices import with_notice
from deepinfer.serving.http.origins import Origins

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from deepinfer.serving.http.service import Service

OPEN_PATHS = frozenset(
    {"/", "/live", "/health", "/version"}
)  # an orchestrator has no key, nor a page before it is loaded
PAGE = "/page/"  # its parts
COUNTED = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})  # work that no engine's limit counts
CLOSED = "TCPTransport closed=True"  # uvloop's words, where the connection ended while something was written
CLIENT_GONE = 499  # in the log and in metrics, as nginx has it
_ID = re.compile(rb"[!-~]{1,128}")


class Door:
    """`log(scope, status, seconds, sent_bytes)` is called once for every request, when it is over. `crossed` adds to a
    response what pages of other sites need to read it."""

    def __init__(
        self,
        app: ASGIApp,
        service: Service,
        log: Callable[[Scope, int, float, int], None],
        crossed: Callable[[ASGIApp], ASGIApp] = lambda response: response,
    ) -> None:
        self._app, self._service, self._log, self._crossed = app, service, log, crossed
        self._origins = Origins(service.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        visit = _Visit(scope, receive, send, self._service)
        started_s = time.monotonic()
        try:
            self._enter(visit)
            await self._app(scope, visit.receive, visit.send)
        except ApiError as error:
            if visit.status:
                raise
            await self._crossed(error_response(scope["path"], error, visit.request_id))(scope, receive, visit.send)
        finally:
            visit.let_go()
            status = visit.status or (CLIENT_GONE if scope["state"].get("ended") == "client_gone" else 0)
            self._log(scope, status, time.monotonic() - started_s, visit.sent_bytes)

    def _enter(self, visit: _Visit) -> None:
        """Raises ApiError for whom the door stays shut."""
        scope, service = visit.scope, self._service
        if service.keys is None:
            self._origins.check_host(visit.headers)
        self._origins.check_origin(visit.headers)
        if service.keys is not None and not self._is_open(scope["path"]) and scope["method"] != "OPTIONS":
            secret = secret_of(scope["headers"])
            if secret is None:
                raise ApiError(401, "this server needs an API key: send Authorization: Bearer KEY, or x-api-key: KEY")
            key = service.keys.find(secret)
            if key is None:
                raise ApiError(401, "this API key is not known here", code="invalid_api_key")
            scope["state"]["key"] = key
            if scope["path"] in COUNTED and scope["method"] == "POST":
                service.admission.charge(key)
        if visit.length is not None and visit.length > service.settings.max_body_bytes:
            raise visit.too_large()

    def _is_open(self, path: str) -> bool:
        """Whether no key is asked for."""
        return (
            path in OPEN_PATHS or path.startswith(PAGE) or (path == "/metrics" and self._service.settings.metrics_open)
        )


class _Visit:
    """One request: its id, what has come of its body, what was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service) -> None:
        self.scope, self._receive, self._send, self._settings = scope, receive, send, service.settings
        self._service = service
        scope.setdefault("state", {})
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        asked = self.headers.get(b"x-request-id", b"")
        self.request_id = asked.decode() if _ID.fullmatch(asked) else uuid.uuid4().hex
        scope["state"]["request_id"] = self.request_id
        length = self.headers.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() and len(length) < 20 else None
        self.status = self.sent_bytes = 0
        self._got_bytes, self._whole = 0, False
        self._deadline_s = time.monotonic() + self._settings.body_timeout_s

    def too_large(self) -> ApiError:
        most = self._settings.max_body_bytes
        size = f"{self.length:,}" if self.length else f"more than {most:,}"
        return ApiError(413, f"the body has {size} bytes, and {most:,} may be sent (serving.max_body_bytes)")

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._deadline_s - time.monotonic())):
                message = await self._receive()
        except TimeoutError as error:
            limit_s = self._settings.body_timeout_s
            raise ApiError(408, f"the body was not whole within {limit_s:g} s (serving.body_timeout_s)") from error
        if message["type"] == "http.request":
            self._hold(len(message.get("body", b"")))
            self._whole = not message.get("more_body", False)
        return message

    def _hold(self, size: int) -> None:
        """Raises ApiError where the body, or those of all requests together, are too large."""
        settings, service = self._settings, self._service
        self._got_bytes += size
        service.held_bytes += size
        if self._got_bytes > settings.max_body_bytes:
            raise self.too_large()
        if service.held_bytes > settings.max_held_bytes:
            message = f"the bodies of all requests together have more than {settings.max_held_bytes:,} bytes"
            raise ApiError(429, f"{message} (serving.max_held_bytes)", code="bodies_full", retry_after_s=1.0)

    def let_go(self) -> None:
        """The request is over."""
        self._service.held_bytes -= self._got_bytes
        self._got_bytes = 0

    async def send(self, message: Any) -> None:
        state = self.scope["state"]
        if message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
        elif message["type"] == "http.response.start":
            self.status = CLIENT_GONE if state.get("ended") == "client_gone" else message["status"]
            if "key_notice" in state and self.status == 200:
                message["headers"] = with_notice(message["headers"], state["key_notice"])
            names = [b"x-request-id", *([b"request-id"] if is_anthropic(self.scope["path"]) else ())]
            message["headers"] = [*message["headers"], *((name, self.request_id.encode()) for name in names)]
            if self.status in (408, 413):  # the rest of the body is not read
                message["headers"].append((b"connection", b"close"))
        try:
            await self._send(message)
        except RuntimeError as error:
            if CLOSED not in str(error):
                raise
            state.setdefault("ended", "client_gone")  # whoever waits for that hears of it in a moment
