"""The answers to one request while they grow, as the event loop sees them: news is fetched, an end is asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from deepinfer.interfaces import FinishReason, TokenLogprobs
from deepinfer.sampling.outputs import Timings

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepinfer.engine.events import TokenEvent

SHUTTING_DOWN, ENGINE_LOST, REQUEST_FAILED = "shutting_down", "engine_lost", "request_failed"


class Piece(msgspec.Struct, kw_only=True):
    """What is new of one answer. Its fields are those of a `TokenEvent`; the token that ends an answer is among `token_ids`.

    With `finish_reason` "error", `error` is a sentence and `error_code` one of the constants above.
    """

    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_code: str | None = None
    cached_tokens: int | None = None
    approximate: bool | None = None
    num_checked: int = 0
    num_accepted: int = 0

    def add(self, event: TokenEvent) -> None:
        """Append the news of a later step, so that whoever reads slowly holds numbers and no events."""
        self.token_ids += event.token_ids
        if event.logprobs:
            self.logprobs = _joined(self.logprobs, event.logprobs)
        if event.prompt_logprobs:
            self.prompt_logprobs = _joined(self.prompt_logprobs, event.prompt_logprobs)
        if event.cached_tokens is not None:
            self.cached_tokens = event.cached_tokens
        if event.approximate is not None:
            self.approximate = event.approximate
        self.finish_reason, self.error = event.finish_reason, event.error
        self.num_checked += event.num_checked
        self.num_accepted += event.num_accepted


class Answers:
    """One request in flight with its `num` answers. Belongs to the event loop's thread.

    `stop(index, reason)` tells the engine that nobody wants an answer any more; `on_first` is called once, when the first
    token comes, and `on_end` once, when all have ended.
    """

    def __init__(
        self, prompt_tokens: int, num: int, now_s: float, stop: Callable[[Answers, int, FinishReason], None]
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0  # of the prompt, as its first answer found them
        self.num_tokens = 0  # of all answers so far, end tokens included
        self.num_checked = self.num_accepted = 0  # drafts
        self.timings = Timings()
        self.finish_reasons: list[FinishReason | None] = [None] * num
        self.request_ids: list[int] = []  # of the engine, once it has taken the request
        self.last_s: list[float | None] = [None] * num  # when the newest token of each came
        self.started_s = now_s
        self.on_first: Callable[[Answers], None] = lambda answers: None
        self.on_end: Callable[[Answers], None] = lambda answers: None
        self._stop = stop
        self._open = num
        self._news: dict[int, Piece] = {}
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        return self._open == 0

    async def next(self) -> list[Piece]:
        """What has come since the last call, the pieces of one answer merged; waits for news. [] once all answers have ended
        and were read."""
        while not self._news:
            if self._open == 0:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, {}
        return list(news.values())

    def finish(self, index: int) -> None:
        """A stop string was met: this answer ends here, and nothing more of it comes."""
        if self.finish_reasons[index] is None:
            self._stop(self, index, "stop")
            self._news.pop(index, None)
            self.end(index, "stop")

    def abort(self) -> None:
        """End whatever has not ended. Calling it again is fine."""
        for index, reason in enumerate(self.finish_reasons):
            if reason is None:
                self._stop(self, index, "abort")
                self.push(index, Piece(index=index, token_ids=[], finish_reason="abort"))

    def fail(self, why: str, code: str) -> None:
        """End whatever has not ended with an error that the client is told; the engine is told, too."""
        for index, reason in enumerate(self.finish_reasons):
            if reason is None:
                self._stop(self, index, "abort")
                self.push(index, Piece(index=index, token_ids=[], finish_reason="error", error=why, error_code=code))

    def push(self, index: int, event: TokenEvent | Piece) -> None:
        """News of one answer, from the engine's line."""
        self.num_tokens += len(event.token_ids)
        if event.num_checked:
            self.num_checked += event.num_checked
            self.num_accepted += event.num_accepted
        if index == 0 and event.cached_tokens is not None:
            self.cached_tokens = event.cached_tokens
        piece = self._news.get(index)
        if piece is None:
            self._news[index] = event if isinstance(event, Piece) else _piece(index, event)
        elif isinstance(event, Piece):
            piece.finish_reason, piece.error, piece.error_code = event.finish_reason, event.error, event.error_code
        else:
            piece.add(event)
        if event.finish_reason is not None:
            self._news[index].error_code = self._news[index].error_code or (REQUEST_FAILED if event.error else None)
            self.end(index, event.finish_reason)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, index: int, reason: FinishReason) -> None:
        self.finish_reasons[index] = reason
        self._open -= 1
        if self._open == 0:
            self.on_end(self)


def _piece(index: int, event: TokenEvent) -> Piece:
    return Piece(
        index=index,
        token_ids=event.token_ids,
        logprobs=event.logprobs,
        prompt_logprobs=event.prompt_logprobs,
        finish_reason=event.finish_reason,
        error=event.error,
        cached_tokens=event.cached_tokens,
        approximate=event.approximate,
        num_checked=event.num_checked,
        num_accepted=event.num_accepted,
    )


def _joined(before: list[TokenLogprobs] | None, more: list[TokenLogprobs]) -> list[TokenLogprobs]:
    """`before` grows in place: a slow reader's list is not copied at every step."""
    if before is None:
        return list(more)
    before += more
    return before
