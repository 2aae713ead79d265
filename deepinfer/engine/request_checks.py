"""What any engine checks of a request before it takes it: here or on another rank, with the same words."""

from __future__ import annotations

import operator
from typing import Any

import msgspec
import numpy as np

from deepinfer.engine.limits import EngineLimits, RequestRefused, check_prompt, check_prompt_logprobs, max_total_tokens
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import is_broken, validate

PRIORITY_LIMIT = 2**63


def checked_request(
    prompt_ids: object, params: SamplingParams, limits: EngineLimits
) -> tuple[np.ndarray, SamplingParams, int]:
    """(prompt int64 [tokens], parameters that their caller cannot change any more, tokens at which the request ends).

    Raises RequestRefused or ParamsError.
    """
    prompt = check_prompt(prompt_ids, limits.vocab_size)
    validate(params, limits.vocab_size, limits.max_model_len, len(prompt))
    if params.logit_bias:  # the caller's dict, which may change while the request waits
        params = msgspec.structs.replace(params, logit_bias=dict(params.logit_bias))
    values = {name: getattr(params, name) for name in params.__struct_fields__ if name != "grammar"}
    plain = {name: plain_value(value) for name, value in values.items() if not isinstance(value, bool | None)}
    params = msgspec.structs.replace(params, **plain)
    check_prompt_logprobs(len(prompt), params, limits)
    return prompt, params, max_total_tokens(len(prompt), params, limits)


def checked_place(priority: object, cache_salt: object) -> tuple[int, str]:
    """Both as plain values. Raises RequestRefused."""
    try:
        number = operator.index(priority)  # type: ignore[arg-type]
    except TypeError:
        number = PRIORITY_LIMIT
    if isinstance(priority, bool) or not -PRIORITY_LIMIT <= number < PRIORITY_LIMIT:
        why = "requests of a higher one are served first, 0 is usual"
        raise RequestRefused(f"priority={priority!r} is not a whole number from -2**63 to 2**63 - 1: {why}")
    if not isinstance(cache_salt, str) or is_broken(cache_salt):
        raise RequestRefused(f"cache_salt={cache_salt!r:.80} is no text: requests of one text share cached prefixes")
    return int(number), str.__str__(cache_salt)


def plain_value(value: Any) -> Any:
    """Members of an IntEnum, texts that know more of themselves and the like, as the values that they are: messages between
    ranks carry no others."""
    if isinstance(value, tuple | list):
        return tuple(plain_value(each) for each in value)
    if isinstance(value, dict):
        return {plain_value(key): plain_value(each) for key, each in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return value
