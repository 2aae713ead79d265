"""Jobs of callers in any thread on one engine: they take turns at it, step by step, and run in one batch."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING

from deepinfer.sampling.collector import Collector, EngineLike, Ticket
from deepinfer.sampling.interrupt import DeferredInterrupt
from deepinfer.sampling.outputs import RequestOutput, StreamEvent, failed
from deepinfer.serving.chat_events import chat_events
from deepinfer.serving.jobs import Desk, Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deepinfer.sampling.tokenizer import BpeTokenizer

_Waiting = deque[tuple[Job, Ticket | RequestOutput]]
_IN_FLIGHT = 1024  # prompts handed to the engine before the first result is out; it queues what does not fit


class Turns:
    """Whoever touches the engine holds `lock`, which is free between steps."""

    def __init__(self, engine: EngineLike, tokenizer: BpeTokenizer | None, desk: Desk) -> None:
        self.lock = threading.RLock()
        self._engine = engine
        self._desk = desk
        self._collector = Collector(engine, tokenizer)
        self._unusable = ""

    def run(self, jobs: Iterable[Job]) -> Iterator[RequestOutput]:
        """Results in the order of the jobs, as soon as they and all before them are there; jobs are read as they are needed."""
        waiting: _Waiting = deque()  # every ticket there is, even if Ctrl-C comes at once
        todo = iter(jobs)
        try:
            while True:
                for job in itertools.islice(todo, _IN_FLIGHT - len(waiting)):
                    self._submit(job, waiting)
                if not waiting:
                    return
                job, ticket = waiting[0]
                if isinstance(ticket, Ticket):
                    self._advance(ticket)
                yield self._result(*waiting.popleft())
        finally:
            self._drop(ticket for _, ticket in waiting)

    def stream(self, job: Job) -> Iterator[StreamEvent]:
        """The events of one job, which the first `next` starts."""
        self._check_usable()
        events = self._events(job)
        return events if job.chat is None else chat_events(self._desk, job, job.chat.notices, events)

    def close(self) -> None:
        """Free what the engine holds; running calls and later ones fail. Closing twice is fine."""
        with self.lock:
            if self._unusable != "closed":
                self._unusable = "closed"
                self._engine.close()

    def _submit(self, job: Job, waiting: _Waiting, *, streaming: bool = False) -> None:
        """Hand a job to the engine and put its ticket into `waiting`, both or neither."""
        with DeferredInterrupt(), self.lock:
            self._check_usable()
            try:
                if job.error:
                    raise ValueError(job.error)
                ticket = self._collector.submit(
                    job.prompt_ids, job.params, cache_salt=job.cache_salt, streaming=streaming
                )
            except ValueError as error:
                waiting.append((job, failed(str(error), job.prompt_ids)))
            else:
                waiting.append((job, ticket))

    def _advance(self, ticket: Ticket, *, until_news: bool = False) -> None:
        """Step the engine until this ticket is done, or has news. The lock is free between steps."""
        with DeferredInterrupt() as interrupt:
            while not (ticket.done or (until_news and ticket.news)):
                with self.lock:
                    self._check_usable()
                    if not ticket.done:
                        self._step()
                interrupt.check()

    def _step(self) -> None:
        self._unusable = "broken: a step of its engine was cut short"
        try:
            self._collector.step()
        except BaseException as error:
            self._unusable += f" by {type(error).__name__}" + (f" ({error})" if str(error) else "")
            raise
        self._unusable = ""

    def _check_usable(self) -> None:
        """Raises RuntimeError where the engine is closed, or broken by an exception inside a step."""
        if self._unusable:
            raise RuntimeError(f"this LLM is {self._unusable}; make a new one")

    def _drop(self, tickets: Iterable[Ticket | RequestOutput]) -> None:
        with DeferredInterrupt(), self.lock:
            if not self._unusable:
                for ticket in tickets:
                    if isinstance(ticket, Ticket):
                        self._collector.drop(ticket)

    def _result(self, job: Job, ticket: Ticket | RequestOutput) -> RequestOutput:
        output = ticket.output if isinstance(ticket, Ticket) else ticket
        if job.chat is not None:
            output.notices = job.chat.notices
            for answer in output.outputs:
                if answer.error is None:
                    answer.message = self._desk.message(job, answer.token_ids, answer.finish_reason or "stop")
        return output

    def _events(self, job: Job) -> Iterator[StreamEvent]:
        mine: _Waiting = deque()
        try:
            self._submit(job, mine, streaming=True)
            ((_, ticket),) = mine
            if isinstance(ticket, RequestOutput):
                yield StreamEvent(index=0, text="", token_ids=[], finish_reason="error", error=ticket.error)
                return
            while not ticket.done or ticket.news:
                self._advance(ticket, until_news=True)
                while ticket.news:
                    yield ticket.news.popleft()
        finally:
            self._drop(ticket for _, ticket in mine)
