"""What Responses and Messages take beside their API's own fields, under the names that /v1/chat/completions has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.fields import field
from deepinfer.serving.openai_sampling import token_bias

if TYPE_CHECKING:
    from collections.abc import Collection

_KINDS: dict[str, Any] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "stop": str | list[str],
    "stop_token_ids": list[int],
    "include_stop_str_in_output": bool,
    "min_tokens": int,
    "ignore_eos": bool,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "logit_bias": dict[str, float],
    "bad_words": list[str],
}
EXTRA_SAMPLING = tuple(name for name in _KINDS if name not in ("temperature", "top_p"))
ROUTING = ("cache_salt", "priority")


def extra_sampling(body: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Fields of SamplingParams that a body names with one of `names`. Raises FieldError on a value of another type."""
    found = {name: field(body, name, _KINDS[name]) for name in names if body.get(name) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0  # both say: every token
    if "include_stop_str_in_output" in found:
        found["include_stop_str"] = found.pop("include_stop_str_in_output")
    if "logit_bias" in found:
        found["logit_bias"] = token_bias(found["logit_bias"])
    return found


def routing(body: dict[str, Any]) -> dict[str, Any]:
    """`cache_salt` and `priority` of a body, as fields of a ChatAsk."""
    return {
        "cache_salt": field(body, "cache_salt", str, default=""),
        "priority": field(body, "priority", int, default=0),
    }
