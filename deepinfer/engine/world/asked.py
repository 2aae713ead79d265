"""A prompt in flight as the driver keeps it: enough to hand it over again, and what was already told of its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from deepinfer.engine.events import TokenEvent
from deepinfer.interfaces import SamplingParams


@dataclass(slots=True)
class Told:
    """What the caller has heard of one answer. After a restart it is computed `again`, and only what is new is told."""

    token_ids: list[int] = field(default_factory=list)
    num_prompt_logprobs: int = 0
    heard_first: bool = False  # the first event, which has cached_tokens
    again: int | None = None  # tokens that have come again; None where nothing has to
    prompt_again: int = 0  # of its prompt's log probabilities

    def repeat(self) -> None:
        """It is computed again from the start."""
        self.again, self.prompt_again = 0, 0

    def news(self, event: TokenEvent) -> TokenEvent | None:
        """What of an event is new; an end with "error" where it contradicts what was told."""
        if self.again is not None:
            new = self._beyond(event)
            if new is None or new.finish_reason == "error":
                return new
            event = new
        self.token_ids += event.token_ids
        self.num_prompt_logprobs += len(event.prompt_logprobs or ())
        self.heard_first = True
        return event

    def _beyond(self, event: TokenEvent) -> TokenEvent | None:
        assert self.again is not None, "it is computed again"
        old = self.token_ids[self.again : self.again + len(event.token_ids)]
        if event.token_ids[: len(old)] != old:
            at = self.again + next(i for i, token in enumerate(old) if event.token_ids[i] != token)
            error = f"ranks were restarted, and the answer came out otherwise from token {at} on"
            return TokenEvent(event.request_id, [], finish_reason="error", error=error)
        skipped = min(len(event.prompt_logprobs or ()), max(0, self.num_prompt_logprobs - self.prompt_again))
        self.prompt_again += len(event.prompt_logprobs or ())
        self.again = self.again + len(old) if len(old) == len(event.token_ids) else None
        new = msgspec.structs.replace(
            event,
            token_ids=event.token_ids[len(old) :],
            logprobs=(event.logprobs or [])[len(old) :] or None,
            prompt_logprobs=(event.prompt_logprobs or [])[skipped:] or None,
        )
        if self.heard_first:
            new.cached_tokens = None
        if old:
            new.num_checked = new.num_accepted = 0
        return new if new.token_ids or new.prompt_logprobs or new.finish_reason else None


@dataclass(slots=True, eq=False)
class Asked:
    """One prompt with its answers that have not ended."""

    prompt_ids: np.ndarray  # int64 [tokens]
    params: SamplingParams  # with a seed
    priority: int
    cache_salt: str
    request_ids: list[int]
    leader: int = 0  # rank of the world that runs it
    open: dict[int, Told] = field(init=False)  # by request id

    def __post_init__(self) -> None:
        self.open = {request_id: Told() for request_id in self.request_ids}

    @property
    def load(self) -> int:
        """Tokens that it may take, as what its leader has to do counts."""
        return self.params.n * (len(self.prompt_ids) + self.params.max_tokens)
