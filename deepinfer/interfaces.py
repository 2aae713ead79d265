"""What the rooms say to each other: requests, steps, results, and the protocols of the seams. No torch at run time.

Shapes: T rows of a step · S sequences in it · D of them decoding · C chunks · R sequences that are sampled · E tokens they
get · K drafts · G n-gram slots · B blocks of a sequence · N slots · L tokens a sequence may have · V vocabulary.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import numpy as np

from deepinfer.structured import AnyGrammar, as_grammar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


@dataclass(slots=True)
class StepPlan:
    """What the host knows of a step when it schedules it, perhaps before the step before it is through.

    S sequences: first D that decode, then C = S - D chunks of prompts. Of a decoding sequence the host says only who it is:
    its newest token, its position and its drafts are the executor's own, as its last step left them. Sampled are all D, then
    the chunks whose `chunk_sampled` is set, in order: the R sequences of a StepOutput.
    """

    slots: np.ndarray  # int64 [S]; all different
    num_decode: int  # D
    block_tables: np.ndarray  # int64 [S, B]; -1 where unused; wide enough for every draft that may be checked
    chunk_starts: np.ndarray  # int64 [C]; first position of each chunk
    chunk_rows: np.ndarray  # int64 [C]
    chunk_tokens: np.ndarray  # int64 [rows of all chunks]
    chunk_sampled: np.ndarray  # bool [C]: the chunk ends at the newest known token
    window_from: np.ndarray  # int64 [S]; no window key before this position exists, in any layer
    upper_from: (
        np.ndarray
    )  # int64 [S]; the same for the layers from the boundary on (bounded replay); at least window_from
    write_from: (
        np.ndarray
    )  # int64 [S]; rows before this position write no compressed entries: they rebuild windows only
    num_drafts: int = 0  # drafts to check in this step, over all decoding sequences, where that many are there
    draft: bool = False  # whether to draft for the next step
    restores: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # [n, 2]: slot, snapshot
    snapshots: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 3), dtype=np.int64)
    )  # [n, 3]: sequence, boundary position, snapshot that gets the state as it is before that position

    @property
    def num_chunk_rows(self) -> int:
        return len(self.chunk_tokens)


@dataclass(slots=True)
class StepInput:
    """One forward pass: S sequences, each a run of consecutive new positions; prefill chunks, decode and verify rows alike.

    Rows of a sequence are adjacent and rise in position. Arrays are NumPy and owned by this step.
    """

    token_ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T], 0-based in the sequence
    ngram_ids: np.ndarray  # int64 [T, G]; column r is the token at position p - r, -1 before the sequence
    row_starts: np.ndarray  # int64 [S + 1]; sequence s has rows row_starts[s] : row_starts[s + 1]
    state_slots: np.ndarray  # int64 [S]; which ring and tail slot each sequence owns
    block_tables: np.ndarray  # int64 [S, B]; block of tokens b * block_tokens …; -1 where unused
    sample_rows: np.ndarray  # int64 [rows with logits]; rising
    window_from: np.ndarray | None = None  # int64 [S], as in StepPlan; None: all zero
    upper_from: np.ndarray | None = None
    write_from: np.ndarray | None = None
    restores: np.ndarray | None = None  # int64 [n, 2], as in StepPlan; None: none
    snapshots: np.ndarray | None = None  # int64 [n, 3]

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
    """What is known of the R sampled sequences of a step only once the step before it is settled."""

    alive: np.ndarray | None = None  # bool [R]; others have ended meanwhile and get no token. None: all alive
    masks: dict[int, np.ndarray] = field(
        default_factory=dict
    )  # r → uint32 [rows, ceil(V / 32)], bit t set: token t is legal. Rows are the sequence's verify rows; fewer rows than
    # there are drafts + 1 say that the next draft is illegal


@dataclass(slots=True)
class VerifyRows:
    """R sequences with 1 + n rows of logits each: the first row decides the token at `positions`, the others check drafts.

    Row i of a sequence is right only where its first i drafts are the tokens that were chosen before it.
    """

    slots: np.ndarray  # int64 [R]
    positions: np.ndarray  # int64 [R]; absolute position of the first token to be decided
    row_starts: np.ndarray  # int64 [R + 1]; rows of the logits
    drafts: np.ndarray  # int64 [R, K]; sequence r checks the first row_starts[r + 1] - row_starts[r] - 1 of them
    masks: dict[int, np.ndarray] = field(default_factory=dict)  # as in SampleInput


@dataclass(slots=True)
class Verified:
    """What R sequences got: accepted drafts and one token after them, E tokens in all, sequence after sequence."""

    token_ids: np.ndarray  # int64 [E]
    counts: np.ndarray  # int64 [R]; tokens of each sequence; 0 only where it failed at its first row
    failed: np.ndarray  # bool [R]: after these tokens the next row gave none
    failures: dict[int, str] = field(default_factory=dict)  # r → why
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index into token_ids → only where asked


@dataclass(slots=True)
class Drafts:
    """Proposals for S sequences, at most K each. Of a sequence, the places after the first -1 are unused."""

    token_ids: np.ndarray  # int64 [S, K]; -1 where nothing is proposed
    confidence: np.ndarray  # float32 [S, K]; chance that the draft is accepted if all before it are; never NaN


@dataclass(slots=True)
class StepOutput:
    """Results of one step for its R sampled sequences, in the order of its StepPlan."""

    token_ids: np.ndarray  # int64 [E], sequence after sequence
    counts: np.ndarray  # int64 [R]; tokens of each sequence; 0 where it failed at once or was not alive
    failed: np.ndarray  # bool [R]: after its tokens the sequence met a row that gave none
    failures: dict[int, str] = field(default_factory=dict)  # r → why
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index into token_ids → only where asked
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(
        default_factory=dict
    )  # sequence s of the step → its prompt rows
    num_checked: np.ndarray | None = None  # int64 [R]; drafts that were checked; None: none anywhere
    drafts: Drafts | None = None  # for the next step of the R sequences
    num_rows: int = 0  # rows of the forward pass
    device_s: float = 0.0  # time of the step on the device, all its parts together


class Verifier(Protocol):
    """Decides the tokens of verify rows, and chooses drafts so that it can judge them. `none` is the case without drafts."""

    def verify(self, logits_TV: Any, rows: VerifyRows) -> Verified:
        """Accept drafts and choose the token after them."""

    def choose(
        self,
        slots: np.ndarray,
        positions: np.ndarray,
        number: int,
        logits_SV: Any,
        masks: Mapping[int, np.ndarray],
        *,
        proposed_S: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draft `number` (0 …) of each sequence, int64 [S], for the token at `positions` [S]; `masks`: s → uint32 [words].

        Drafted under the request's own sampling parameters; what judging it will need is remembered by slot. Drafts of
        a sequence are chosen in order, each sees those before it. -1: no draft, because of a fault in its logits, because
        nothing is legal, or because the sequence has no draft before this one.

        `proposed_S` (int64 [S], -1 where there is none; `logits_SV` is None then) are tokens that did not come from a
        distribution, such as those of an n-gram: they are judged as drawn from one that holds nothing else. Of them come
        back those that the masks allow.
        """


class Drafter(Protocol):
    """Proposes tokens for the steps to come."""

    depth: int  # most drafts at a time
    needs_features: bool  # whether `observe` wants the model's draft features

    def observe(self, step: StepInput, features_TF: Any) -> None:
        """The forward pass of a step gave these features; bring the draft caches up to date."""

    def draft(
        self,
        slots: np.ndarray,
        tokens_NL: np.ndarray,
        num_tokens: np.ndarray,
        pad: int,
        choose: Callable[..., np.ndarray],
    ) -> Drafts:
        """Proposals that follow the newest tokens of `slots` [S].

        `tokens_NL[slot, pad + p]` is the token at position p of a slot; `num_tokens` [S] are known, the newest without a
        feature yet. `choose(number, logits_SV) -> int64 [S]` picks draft `number` from its logits; a drafter that brings
        tokens instead hands over logits_SV=None and `proposed_S` by keyword, and gets back what is legal of it (-1: nothing).
        """


class VerifyLengths(Protocol):
    """How many drafts a step checks. Knows confidences that are two steps old, never newer ones: see the docstring of
    `speculation.budget`."""

    def budget(self, confidence_RK: np.ndarray, other_rows: int) -> tuple[int, bool]:
        """(drafts to check in the next step over all R decoding sequences, whether to draft at its end).

        `confidence_RK` float32: of each sequence's drafts as known two steps ago; NaN where there is no such knowledge.
        `other_rows`: prompt rows in the same step.
        """

    def observe(
        self,
        *,
        num_sequences: int,
        num_rows: int,
        num_tokens: int,
        drafted: bool,
        device_s: float,
        num_checked: int | None = None,
    ) -> None:
        """A step is through: its decoding sequences, its rows of all kinds, the tokens that it gave, its time.

        `num_checked`: drafts among its rows; None: all rows beyond one a sequence.
        """

    def take_notice(self) -> str:
        """What the user should know, once; else ""."""


class Executor(Protocol):
    """Runs steps on a device. Steps are submitted, sampled and collected in order; all calls take effect in call order."""

    def submit(self, plan: StepPlan) -> None:
        """Start the forward pass of a step."""

    def sample(self, sample: SampleInput) -> None:
        """Choose the tokens of the oldest submitted, not yet sampled step, and draft for the next one."""

    def collect(self) -> StepOutput:
        """Wait for the oldest sampled step and return its results."""

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        """A sequence enters state slot `slot`; it ends at `length_end` tokens at the latest."""

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
