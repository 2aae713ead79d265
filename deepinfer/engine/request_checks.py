"""What any engine checks of a request before it takes it: here or on another rank, with the same words."""

from __future__ import annotations

import msgspec
import numpy as np

from deepinfer.engine.limits import EngineLimits, check_prompt, check_prompt_logprobs, max_total_tokens
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import validate


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
    check_prompt_logprobs(len(prompt), params, limits)
    return prompt, params, max_total_tokens(len(prompt), params, limits)
