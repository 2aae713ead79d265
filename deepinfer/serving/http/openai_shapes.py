"""What answers of both paths of OpenAI's older dialect are made of: ids, usage, events."""

from __future__ import annotations

import time
import uuid
from typing import Any


def new_id(kind: str) -> str:
    """An id of a response, such as `chatcmpl-…`."""
    return f"{kind}-{uuid.uuid4().hex}"


def now() -> int:
    """`created`, in seconds since 1970."""
    return int(time.time())


def usage(num_prompt: int, num_cached: int, num_answer: int, num_reasoning: int | None = None) -> dict[str, Any]:
    """Tokens: of the prompt, of those found in the prefix cache, of all answers, of those for thinking."""
    told: dict[str, Any] = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    if num_reasoning is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
    return told


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


DONE = b"data: [DONE]\n\n"
