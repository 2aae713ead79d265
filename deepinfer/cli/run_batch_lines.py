"""A line of a batch file: what it asks, what the server in this process answers, and the record of both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from deepinfer.cli.asgi import Answer, post
from deepinfer.serving.batch_file import DoubleKey, unique_keys

if TYPE_CHECKING:
    from deepinfer.serving.batch_file import Line

NOT_NOW = (429, 503)  # no answer to what was asked: another try may get one
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


class Unanswered(Exception):
    """The server has no answer to a line now, and why; the line is not done."""


class Asked(Struct):
    """A line that is a request; `why_not` says why another one is none."""

    custom_id: str | None
    url: str = ""
    body: bytes = b""
    why_not: str = ""


def asked_of(line: Line, seen: set[str]) -> Asked:
    """Take a line apart. `seen` are the custom_ids of the lines before, and gets this one's."""
    try:
        item = json.loads(line.data, object_pairs_hook=unique_keys)
    except DoubleKey as error:
        return Asked(None, why_not=str(error))
    except (ValueError, RecursionError) as error:
        return Asked(None, why_not=f"the line is no JSON: {error}")
    if not isinstance(item, dict):
        return Asked(None, why_not="a line is an object with custom_id, method, url and body")
    name = item.get("custom_id")
    if not isinstance(name, str) or not name:
        return Asked(None, why_not="custom_id must be a text that tells this request from the others")
    why = _why_not(item, name in seen)
    seen.add(name)
    if why:
        return Asked(name, why_not=why)
    return Asked(name, item["url"], json.dumps(item["body"]).encode())


def _why_not(item: dict[str, Any], is_known: bool) -> str:
    """Why an object with a custom_id is no request; "" where it is one."""
    body, unknown = item.get("body"), sorted(set(item) - {"custom_id", "method", "url", "body"})
    if is_known:
        return f"custom_id {item['custom_id']!r:.80} was given before, and answers could not be told apart"
    if unknown:
        return f"unknown {', '.join(unknown)}: a line has custom_id, method, url and body"
    if item.get("method", "POST") != "POST":
        return f"method is {item['method']!r:.40}, and only POST asks for answers"
    if item.get("url") not in URLS:
        return f"url is {item.get('url')!r:.80}: there are {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be an object: what the url takes"
    if body.get("stream"):
        return "stream=true: a batch gives whole answers, leave it out"
    return "background=true: a batch waits for its answers, leave it out" if body.get("background") else ""


async def record_of(line: Line, asked: Asked, app: Any) -> tuple[dict[str, Any], bool]:
    """The record of a line, and whether it failed. Raises Unanswered."""
    head = {"line": line.number, "digest": line.digest, "id": f"batch_req_{line.digest}_{line.number}"}
    head |= {"custom_id": asked.custom_id}
    if asked.why_not:
        error = {"code": "invalid_line", "message": asked.why_not}
        return head | {"response": None, "error": error}, True
    answer = await post(app, asked.url, asked.body)
    if answer.status in NOT_NOW:
        raise Unanswered(_message_of(answer))
    request_id = answer.headers.get("x-request-id", "")
    response = {"status_code": answer.status, "request_id": request_id, "body": _body_of(answer)}
    return head | {"response": response, "error": None}, not 200 <= answer.status < 300


def _body_of(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return answer.body.decode(errors="replace")


def _message_of(answer: Answer) -> str:
    body = _body_of(answer)
    error = body.get("error") if isinstance(body, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else f"HTTP {answer.status}: {body}"
