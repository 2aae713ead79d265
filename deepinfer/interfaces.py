"""What the rooms say to each other: requests, steps, results, and the protocols of the seams. No torch at run time.

Shapes: T rows of a step · S sequences in it · R rows that are sampled · G n-gram slots · B blocks of a sequence · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How one request wants its tokens chosen.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. `seed` None draws one at admission; with n > 1 each
    answer has its own seed derived from it. `logprobs` = k returns the k best and the chosen token per step, `prompt_logprobs`
    the same for the prompt; `logprobs_mode` says whether before ("raw") or after ("processed") penalties, masks and filters.
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

    def __post_init__(self) -> None:
        for name, single in (("stop", str), ("bad_words", str), ("stop_token_ids", int)):
            value = getattr(self, name)
            if isinstance(value, single) and not isinstance(value, bool):
                msgspec.structs.force_setattr(self, name, (value,))
            elif isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))


@dataclass(slots=True)
class Request:
    """One sequence to generate (an n > 1 request becomes n of these). Times are seconds on the monotonic clock."""

    request_id: int
    prompt_ids: np.ndarray  # int64 [prompt tokens], BOS included
    params: SamplingParams
    seed: int  # 64-bit key of this sequence's random counters
    priority: int = 0
    arrival_s: float = 0.0


@dataclass(slots=True)
class StepInput:
    """One forward pass: S sequences, each a run of consecutive new positions; prefill chunks and decode rows alike.

    Rows of a sequence are adjacent and rise in position. Arrays are NumPy and owned by this step.
    """

    token_ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T], 0-based in the sequence
    ngram_ids: np.ndarray  # int64 [T, G]; column r is the token at position p - r, -1 before the sequence
    row_starts: np.ndarray  # int64 [S + 1]; sequence s has rows row_starts[s] : row_starts[s + 1]
    state_slots: np.ndarray  # int64 [S]; which ring and tail slot each sequence owns
    block_tables: np.ndarray  # int64 [S, B]; block of tokens b * block_tokens …; -1 where unused
    sample_rows: np.ndarray  # int64 [R]; rows whose logits are wanted, rising

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class TokenLogprobs:
    """Log probabilities at one position: the chosen token first, then the best others, most likely first."""

    token_ids: np.ndarray  # int64 [1 + k]
    logprobs: np.ndarray  # float32 [1 + k]
    rank: int  # of the chosen token, 1 = most likely


@dataclass(slots=True)
class SampleInput:
    """Which sampling slot each sampled row belongs to, and the absolute position its new token will have."""

    slots: np.ndarray  # int64 [R]
    positions: np.ndarray  # int64 [R]


@dataclass(slots=True)
class StepOutput:
    """Results of one step, row for row of its SampleInput. `failed[r]` says the row held a NaN and has no token."""

    token_ids: np.ndarray  # int64 [R]
    failed: np.ndarray  # bool [R]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # r → only where asked
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(
        default_factory=dict
    )  # sequence s of the step → its prompt rows


class Executor(Protocol):
    """Runs steps on a device. Steps are submitted, sampled and collected in order, one in flight for each depth."""

    def submit(self, step: StepInput) -> None:
        """Start the forward pass of a step."""

    def sample(self, sample: SampleInput) -> None:
        """Choose the tokens of the oldest submitted, not yet sampled step."""

    def collect(self) -> StepOutput:
        """Wait for the oldest sampled step and return its results."""

    def admit(self, slot: int, request: Request) -> None:
        """A sequence enters sampling slot `slot`."""

    def release(self, slot: int) -> None:
        """The sequence in `slot` has left; its state may be reused."""

    def close(self) -> None:
        """Free what the executor holds."""


class Tokenizer(Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    @property
    def vocab_size(self) -> int: ...
