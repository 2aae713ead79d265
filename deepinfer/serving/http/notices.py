"""What a client should know of its request, in a header: the same on all dialects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = b"x-deepinfer-notices"
_MOST_BYTES = 4096  # of a header; proxies refuse more than some kilobytes


def notice_headers(notices: Sequence[str]) -> dict[str, str]:
    """Sentences as a JSON list in ASCII, as many as fit; no header where there are none."""
    told = list(notices)
    while told and len(json.dumps(told)) > _MOST_BYTES:
        told.pop()
    return {"x-deepinfer-notices": json.dumps(told)} if told else {}


def with_notice(headers: Sequence[tuple[bytes, bytes]], notice: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response with one more sentence, which goes first."""
    own = [json.loads(value) for name, value in headers if name == HEADER]
    told = notice_headers([notice, *(own[0] if own else ())])
    others = [each for each in headers if each[0] != HEADER]
    return [*others, *((name.encode(), value.encode()) for name, value in told.items())]
