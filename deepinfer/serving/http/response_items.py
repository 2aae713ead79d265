"""GET /v1/responses/{id}/input_items: pages of what a request brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 100


def listed(response_id: str, items: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of the request's own items, the newest first unless order=asc. Raises ApiError 400."""
    named = [_with_id(item, response_id, number) for number, item in enumerate(items)]
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, f"order={order!r:.40}: there are asc and desc", param="order")
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 5 and 1 <= int(limit) <= _MOST):
        raise ApiError(400, f"limit={limit!r:.40}: it is a number from 1 to {_MOST}", param="limit")
    if order == "desc":
        named.reverse()
    after = query.get("after")
    if after is not None:
        ids = [item["id"] for item in named]
        if after not in ids:
            raise ApiError(400, f"after={after!r:.80} is no item of {response_id}", param="after")
        named = named[ids.index(after) + 1 :]
    page = named[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(named) > len(page),
    }


def _with_id(item: dict[str, Any], response_id: str, number: int) -> dict[str, Any]:
    """The item, complete: with a type, an id (the client's own where it gave one) and content in parts."""
    told = {"type": "message", "id": f"item_{response_id.removeprefix('resp_')}_{number}"} | item
    told["id"] = told["id"] or f"item_{response_id.removeprefix('resp_')}_{number}"
    if told["type"] == "message" and isinstance(told.get("content"), str):
        kind = "output_text" if told["role"] == "assistant" else "input_text"
        told["content"] = [{"type": kind, "text": told["content"]}]
    return told
