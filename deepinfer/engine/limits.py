"""What the engine can hold, and the check of a new request against it.

Answers are cut, prompts never: a request whose `max_tokens` reaches beyond `max_model_len` ends there with reason "length"; a
prompt that leaves no room for one token (or for `min_tokens`), or a request whose cache can never fit, is refused at once.
"""

from __future__ import annotations

import msgspec
import numpy as np

from deepinfer.interfaces import SamplingParams

OPTIONAL = (
    "eos_token_ids",
    "watchdog_s",
    "async_depth",
    "draft_depth",
    "replay",
    "replay_keep",
)  # fields that may be zero or empty


class RequestRefused(ValueError):
    """A request that this engine can never serve; the message has the numbers."""


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes fixed when the engine is built."""

    vocab_size: int
    ngram_size: int  # tokens that the engram hash of a position looks at, itself included
    max_model_len: int  # tokens of prompt and answer together
    max_num_seqs: int  # sequences that hold a slot
    max_num_batched_tokens: int  # rows of one step
    max_prefill_tokens: int  # prompt rows that may delay the next token of running answers
    num_blocks: int
    block_tokens: int = 128
    eos_token_ids: tuple[int, ...] = ()
    watchdog_s: float = 60.0  # 0 turns it off
    async_depth: int = 0  # steps that are scheduled ahead of their predecessor's results
    draft_depth: int = 0  # drafts of a sequence at a time; 0: nothing is drafted
    replay: str = "none"  # the option that says so: none, mask or compact
    replay_keep: int = 0  # last tokens of a prompt that the later layers see; 0: all

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)} must be at least 1"
            for name in self.__struct_fields__
            if name not in OPTIONAL and getattr(self, name) < 1
        ]
        if self.max_num_batched_tokens < self.max_num_seqs:
            problems.append(
                f"scheduler.max_num_batched_tokens={self.max_num_batched_tokens} is less than "
                f"scheduler.max_num_seqs={self.max_num_seqs}: a step must hold one row of every running sequence"
            )
        if problems:
            raise ValueError("; ".join(problems))

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)


def check_prompt(prompt_ids: object, vocab_size: int) -> np.ndarray:
    """The prompt as int64 [tokens]. Raises RequestRefused unless it is a non-empty row of ids in 0 … vocab_size - 1."""
    ids = np.asarray(prompt_ids)
    if ids.ndim != 1 or not ids.size:
        raise RequestRefused(f"a prompt is a non-empty row of token ids; got an array of shape {list(ids.shape)}")
    if ids.dtype.kind not in "iu":
        raise RequestRefused(f"token ids are integers; got {ids.dtype}")
    bad = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if bad.size:
        raise RequestRefused(
            f"token id {int(ids[bad[0]])} at position {int(bad[0])} is outside the vocabulary 0 … {vocab_size - 1}"
            + (f" ({bad.size} such ids)" if bad.size > 1 else "")
        )
    return ids.astype(np.int64)


def check_prompt_logprobs(num_prompt: int, params: SamplingParams, limits: EngineLimits) -> None:
    """Raises RequestRefused where log probabilities are asked of prompt tokens that the later layers never see."""
    if params.prompt_logprobs is None or not 0 < limits.replay_keep < num_prompt:
        return
    raise RequestRefused(
        f"prompt_logprobs={params.prompt_logprobs} of a prompt of {num_prompt} tokens: with replay={limits.replay} the later "
        f"layers see its last {limits.replay_keep} only, and there is nothing to tell of the tokens before them; type "
        "prompt_logprobs=None, or replay=none"
    )


def max_total_tokens(num_prompt: int, params: SamplingParams, limits: EngineLimits) -> int:
    """Tokens of prompt and answer at which a request (of valid params) ends for length.

    Raises RequestRefused where the cache can never hold that many.
    """
    total = min(num_prompt + params.max_tokens, limits.max_model_len)
    needed = limits.blocks_for(total - 1)  # the last token is never fed back
    if needed > limits.num_blocks:
        fits = limits.num_blocks * limits.block_tokens + 1 - num_prompt
        cure = f"lower max_tokens to {fits}" if fits > 0 else "shorten the prompt"
        raise RequestRefused(
            f"prompt {num_prompt} + max_tokens {total - num_prompt} needs {needed} cache blocks of {limits.block_tokens} "
            f"tokens and there are {limits.num_blocks}; {cure} or raise cache.memory_bytes"
        )
    return total
