"""What the engine tells the output layer, step by step."""

from __future__ import annotations

import msgspec

from deepinfer.interfaces import FinishReason, TokenLogprobs


class TokenEvent(msgspec.Struct, gc=False):
    """News of one sequence from one step.

    `token_ids` are its new tokens in order; an end-of-sequence or stop token is among them. `logprobs` has one entry for each
    of them where asked for. `prompt_logprobs` continues where the last event of this sequence stopped; its very first entry
    is prompt position 1. `finish_reason` is set in the last event only, and `error` says what happened where it is "error".
    `cached_tokens`, and `approximate` (see `RequestOutput`), come with the first event that has news of them; else None.
    `num_checked` drafts were verified, and the first `num_accepted` of them were right; a stop token may have cut the tokens.
    """

    request_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    cached_tokens: int | None = None
    approximate: bool | None = None
    num_checked: int = 0
    num_accepted: int = 0
