"""What is asked for: one request, and how it wants its tokens chosen."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from deepinfer.structured import AnyGrammar, as_grammar

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request wants its tokens chosen.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` None draws one at admission; with n > 1 each
    answer has its own seed derived from it. `logprobs` = k returns the k best and the chosen token per step, `prompt_logprobs`
    the same for the prompt; `logprobs_mode` says whether before ("raw") or after ("processed") penalties, masks and filters.
    `grammar` is what the answer must look like (deepinfer.structured), also as a dict such as {"regex": "yes|no"}.
    A single str as `stop` or `bad_words`, and a single int as `stop_token_ids`, are taken for a list of one.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str: bool = False
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    skip_special_tokens: bool = True
    grammar: AnyGrammar | None = None

    def __post_init__(self) -> None:
        for name, single in (("stop", str), ("bad_words", str), ("stop_token_ids", int)):
            value = getattr(self, name)
            if isinstance(value, single) and not isinstance(value, bool):
                msgspec.structs.force_setattr(self, name, (value,))
            elif isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
        if isinstance(self.grammar, dict):
            with suppress(ValueError):  # whoever checks the parameters says what is wrong with it
                msgspec.structs.force_setattr(self, "grammar", as_grammar(self.grammar))


@dataclass(slots=True)
class Request:
    """One sequence to generate (an n > 1 request becomes n of these). Times are seconds on the monotonic clock."""

    request_id: int
    prompt_ids: np.ndarray  # int64 [prompt tokens], BOS included
    params: SamplingParams
    seed: int  # 64-bit key of this sequence's random counters
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""  # prompts share cached prefixes only with others of the same salt
