"""The protocols of the seams: what an executor, a verifier, a drafter, a budget and a tokenizer have to do.

Shapes: S sequences · R sequences that are sampled · T rows of a step · K drafts · N slots · L tokens a sequence may have · V
vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from deepinfer.interfaces.requests import Request
    from deepinfer.interfaces.steps import Drafts, SampleInput, StepInput, StepOutput, StepPlan, Verified, VerifyRows


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
