"""What comes back from the engine: one typed result for each prompt, errors as values, and the pieces of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from deepinfer.interfaces import FinishReason, TokenLogprobs


class Timings(msgspec.Struct, kw_only=True):
    """Milliseconds since the request was handed over; None for what never happened."""

    queue_ms: float | None = None  # until it began to be computed
    first_token_ms: float | None = None
    total_ms: float | None = None


class DraftCounts(msgspec.Struct, kw_only=True):
    """What speculation did for one answer. All that the engine checked counts, also beyond the place where the answer ends."""

    rounds: int = 0  # steps that checked drafts of this answer
    checked: int = 0  # drafts
    accepted: int = 0  # of those

    @property
    def accepted_length(self) -> float | None:
        """Mean tokens of a round, the one after the drafts included; None where nothing was checked."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    def add(self, num_checked: int, num_accepted: int) -> None:
        """A step's news; one that checked nothing is no round."""
        self.rounds += num_checked > 0
        self.checked += num_checked
        self.accepted += num_accepted


class Completion(msgspec.Struct, kw_only=True):
    """One answer. `token_ids` include the token that ended it; `text` does not, nor a stop string (`include_stop_str` off)."""

    index: int
    text: str = ""
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None
    logprobs: list[dict[int, float]] | None = None  # per token: the chosen one first, then the best, likeliest first
    error: str | None = None
    message: Any = None  # of a chat: the answer taken apart, a `serving.codec.ChatMessage`
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)  # all zero without speculation


class RequestOutput(msgspec.Struct, kw_only=True):
    """The result for one prompt: `outputs` has `params.n` answers; the shortcuts below are those of the first."""

    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[dict[int, float] | None] | None = None  # by position; position 0 has none
    timings: Timings = msgspec.field(default_factory=Timings)
    cached_tokens: int = 0  # of the prompt, found in the prefix cache and not computed for the first answer
    approximate: bool = False  # some answer goes on from windows rebuilt of too few tokens (replay.on_hit=bounded)
    notices: tuple[str, ...] = ()  # what the chat format overrode, and what nothing enforces

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[dict[int, float]] | None:
        return self.outputs[0].logprobs

    @property
    def error(self) -> str | None:
        return self.outputs[0].error

    @property
    def message(self) -> Any:
        return self.outputs[0].message

    @property
    def drafts(self) -> DraftCounts:
        return self.outputs[0].drafts


class StreamEvent(msgspec.Struct, kw_only=True):
    """News of one answer. `text` is new text, never half a character; the last event has a `finish_reason`.

    Of a chat, `text` is the answer's content, `reasoning` its thinking, and the last event carries the `message`.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, float]] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    reasoning: str = ""
    message: Any = None  # a `serving.codec.ChatMessage`
    notices: tuple[str, ...] = ()  # on the first event of a chat
    drafts: DraftCounts | None = None  # of the whole answer, on its last event


def failed(message: str, prompt_token_ids: list[int] | None = None) -> RequestOutput:
    """The result of a request that never ran."""
    answer = Completion(index=0, finish_reason="error", error=message)
    return RequestOutput(prompt_token_ids=prompt_token_ids or [], outputs=[answer])


def as_dict(entry: TokenLogprobs, k: int) -> dict[int, float]:
    """Token id → log probability of the chosen token and the k best ones, as many as can occur at all."""
    kept = k + (entry.rank > k)
    ids, values = entry.token_ids[:kept].tolist(), entry.logprobs[:kept].tolist()
    return {ids[0]: values[0]} | {i: value for i, value in zip(ids[1:], values[1:]) if value > float("-inf")}
