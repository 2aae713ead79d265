"""Requests that got an error in place of an answer: a closed set of reasons, whoever it was that refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

CLIENT_GONE = 499  # nobody refused that one
COUNTED = "refused"  # in a request's state: its limits refused it, and said why themselves
DIALECTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
REASONS = {  # status → reason, where nobody gave a closer one
    400: "bad_request",
    401: "unknown_key",
    403: "forbidden",
    404: "not_found",
    405: "wrong_method",
    408: "too_slow",
    413: "too_large",
    415: "not_json",
    429: "limit",
    500: "fault",
    503: "unavailable",
}


def reason_of(status: int, code: str = "") -> str:
    """A label for the reason. Codes of limits are ours and few."""
    return code or REASONS.get(status, "other")


def refusal(scope: Scope, status: int) -> tuple[str, str, str] | None:
    """Dialect, status and reason of an HTTP request that was refused before any limit was asked; None for any other. Only
    POST asks for work: probes and the page look at a server that is not ready all the time."""
    asked = scope["method"] == "POST" and status >= 400 and status != CLIENT_GONE
    if not asked or scope.get("state", {}).get(COUNTED):
        return None
    return DIALECTS.get(scope["path"], "other"), str(status), reason_of(status)
