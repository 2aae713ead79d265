"""From the engine's events to results: text, stop strings, log probabilities, timings, for all requests in flight."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from deepinfer.sampling.outputs import Completion, RequestOutput, StreamEvent, Timings, as_dict
from deepinfer.sampling.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.tokenizer import BpeTokenizer


class EngineLike(Protocol):
    """What is used of `engine.engine.Engine`."""

    limits: Any
    clock: Callable[[], float]
    newly_admitted: list[int]  # request ids that the newest step admitted

    def submit(
        self, prompt_ids: Any, params: SamplingParams, *, priority: int = 0, cache_salt: str = ""
    ) -> list[int]: ...

    def step(self) -> Sequence[Any]: ...

    def abort(self, request_id: int) -> bool: ...

    def finish(self, request_id: int, reason: Any = "stop") -> bool: ...

    def stats(self) -> Any: ...

    def take_notices(self) -> list[str]: ...

    def close(self) -> None: ...


class Ticket:
    """One prompt in flight: its result as far as it is known, and the news that a stream has not fetched yet."""

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        tokenizer: BpeTokenizer | None,
        now_s: float,
        streaming: bool,
    ) -> None:
        self.params = params
        self.request_ids: list[int] = []
        self.news: deque[StreamEvent] = deque()
        self.started_s = now_s
        self.streaming = streaming
        self.texts = [TextStream(tokenizer, params) if tokenizer else None for _ in range(params.n)]
        self.output = RequestOutput(
            prompt_token_ids=prompt_ids,
            outputs=[
                Completion(index=index, token_ids=[], logprobs=None if params.logprobs is None else [])
                for index in range(params.n)
            ],
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
            timings=Timings(),
        )

    @property
    def done(self) -> bool:
        return all(answer.finish_reason for answer in self.output.outputs)


class Collector:
    """Owns the requests of one engine. Not thread-safe: its caller holds a lock.

    An event may hold several tokens, of which the first that completes a stop string is the last that is delivered: text,
    ids and log probabilities end there. The engine's `sampled_tokens` counts what it booked, which may be more: the rest of
    that event, though not the results of a step that was in flight.
    """

    def __init__(
        self, engine: EngineLike, tokenizer: BpeTokenizer | None, clock: Callable[[], float] | None = None
    ) -> None:
        """`clock` None: the engine's, which a simulation moves."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._clock = clock or engine.clock
        self._live: dict[int, tuple[Ticket, int]] = {}  # request id → its prompt, and which answer of it

    def submit(
        self, prompt_ids: list[int], params: SamplingParams, *, cache_salt: str = "", streaming: bool = False
    ) -> Ticket:
        """Hand a prompt to the engine; `streaming` keeps its news for fetching. Raises ValueError where it is refused."""
        ticket = Ticket(prompt_ids, params, self._tokenizer, self._clock(), streaming)
        ticket.request_ids = self._engine.submit(prompt_ids, params, cache_salt=cache_salt)
        self._live |= {request_id: (ticket, index) for index, request_id in enumerate(ticket.request_ids)}
        return ticket

    def step(self) -> None:
        """One engine step; every ticket hears its news."""
        started_s = self._clock()
        events = self._engine.step()
        now_s = self._clock()
        self._note_admissions(started_s)
        for event in events:
            if event.request_id in self._live:
                self._hear(event, now_s)

    def drop(self, ticket: Ticket) -> None:
        """Abort what is left of a ticket; nobody will hear of it."""
        for request_id in ticket.request_ids:
            if request_id in self._live:
                self._forget(request_id)
                self._engine.abort(request_id)

    def _forget(self, request_id: int) -> None:
        del self._live[request_id]

    def _note_admissions(self, started_s: float) -> None:
        """Who waited, for a place or for a grammar, until the step that began at `started_s`."""
        for request_id in self._engine.newly_admitted:
            ticket, _ = self._live.get(request_id, (None, 0))
            if ticket is not None and ticket.output.timings.queue_ms is None:  # the first of n answers
                ticket.output.timings.queue_ms = (started_s - ticket.started_s) * 1e3

    def _hear(self, event: Any, now_s: float) -> None:
        ticket, index = self._live[event.request_id]
        answer, params, timings = ticket.output.outputs[index], ticket.params, ticket.output.timings
        elapsed_ms = (now_s - ticket.started_s) * 1e3
        if event.prompt_logprobs and index == 0 and ticket.output.prompt_logprobs is not None:
            ticket.output.prompt_logprobs += [
                as_dict(entry, params.prompt_logprobs or 0) for entry in event.prompt_logprobs
            ]
        if event.cached_tokens is not None and index == 0:
            ticket.output.cached_tokens = event.cached_tokens
        ticket.output.approximate |= bool(event.approximate)
        if event.token_ids and timings.first_token_ms is None:
            timings.first_token_ms = elapsed_ms
        stream = ticket.texts[index]
        text, num_tokens = self._read(stream, event)
        logprobs = None
        if answer.logprobs is not None and event.logprobs:
            logprobs = [as_dict(entry, params.logprobs or 0) for entry in event.logprobs[:num_tokens]]
            answer.logprobs += logprobs
        answer.text += text
        answer.token_ids += event.token_ids[:num_tokens]
        answer.drafts.add(event.num_checked, event.num_accepted)
        answer.error = event.error
        answer.finish_reason = event.finish_reason
        if stream is not None and stream.stopped:  # whatever happened behind the stop string is not of this answer
            answer.finish_reason, answer.error = "stop", None
            if event.finish_reason is None:
                self._engine.finish(event.request_id, "stop")
        if answer.finish_reason:
            timings.total_ms = elapsed_ms
            self._forget(event.request_id)
        if ticket.streaming and (num_tokens or answer.finish_reason):
            ticket.news.append(
                StreamEvent(
                    index=index,
                    text=text,
                    token_ids=event.token_ids[:num_tokens],
                    logprobs=logprobs,
                    finish_reason=answer.finish_reason,
                    error=answer.error,
                    drafts=answer.drafts if answer.finish_reason else None,
                )
            )

    def _read(self, stream: TextStream | None, event: Any) -> tuple[str, int]:
        """(new text, how many of the event's tokens belong to the answer)."""
        if stream is None:
            return "", len(event.token_ids)
        text, num_tokens = stream.push(event.token_ids, ends_with_stop_token=event.finish_reason == "stop")
        if event.finish_reason:
            text += stream.finish()
        return text, num_tokens
