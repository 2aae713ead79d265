"""What a leader does all day: take what the driver says, run steps, tell what they brought.

Ranks that share experts or n-gram tables run their steps together: a leader without rows serves the others' steps. When nobody
has requests, all fall asleep at the same meeting, and a numbered message of the driver wakes all of them (see `Poke`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.world.messages import (
    Close,
    Events,
    Experts,
    ExpertsAsk,
    Finish,
    Notice,
    Poke,
    Stats,
    StatsAsk,
    Submit,
    ToRank,
)
from deepinfer.parallel.channel import MessageTooLarge
from deepinfer.parallel.eplb.balancer import BALANCE, FINISH, GATHER
from deepinfer.parallel.meeting import Met, Word

if TYPE_CHECKING:
    from deepinfer.engine.engine import Engine
    from deepinfer.engine.executor_distributed import DistributedExecutor
    from deepinfer.engine.world.rank_line import RankLine
    from deepinfer.parallel.eplb.balancer import EplbBalancer

PAUSE_S = 0.005  # between meetings at which nobody had rows: somebody waits for a grammar, or a message is on its way


class RankLoop:
    """`serve(word)` is what a leader without rows does on `in_step`, None where it shares no steps."""

    def __init__(
        self,
        engine: Engine,
        line: RankLine,
        serve: Callable[[Word], Met] | None = None,
        in_step: DistributedExecutor | None = None,
        balancer: EplbBalancer | None = None,
    ) -> None:
        self._engine, self._line, self._serve = engine, line, serve
        self._in_step, self._balancer = in_step, balancer
        self._theirs: dict[int, int] = {}  # request id of the engine → of the driver
        self._ours: dict[int, int] = {}
        self._wake, self._closing, self._asleep, self._pausing = 0, False, True, False
        engine.on_admitted = self._tell_admitted
        if serve is not None:
            engine.grammars.wait_s = 0.0  # others would wait, too

    def run(self) -> None:
        """Until the driver says Close. Raises DriverLost, and whatever a step raises."""
        while True:
            self._read()
            before = self._engine.num_submitted
            if self._engine.has_work:
                self._step()
            if self._serve is None:
                if self._closing:
                    return
            elif self._engine.num_submitted == before and not self._asleep:
                works = self._engine.has_work
                word = Word(runs=False, drafts=False, works=works, closes=self._closing, wake=self._wake)
                met = self._serve(word)
                if met.closes:
                    return
                self._asleep, self._pausing = met.sleeps, not met.runs and not met.sleeps

    @property
    def doing(self) -> str:
        """For whoever asks what this rank was at, in its own words."""
        scheduler = self._engine.scheduler
        if not scheduler.unfinished:
            return "serving others" if self._serve is not None and not self._asleep else "idle"
        waiting, prefilling, decoding = len(scheduler.line), scheduler.num_prefilling, scheduler.num_decoding
        return f"running: {prefilling} in prefill, {decoding} answering, {waiting} waiting"

    def _read(self) -> None:
        """All messages that are there; waits where there is nothing else to do."""
        idle = not self._engine.has_work if self._serve is None else self._asleep
        wait_s = None if idle and not self._closing else PAUSE_S if self._pausing else 0.0
        while (message := self._line.next(wait_s)) is not None:
            self._take(message)
            wait_s = 0.0
        self._pausing = False

    def _take(self, message: ToRank) -> None:
        if isinstance(message, (Submit, Poke, ExpertsAsk, Close)):
            self._wake, self._asleep = max(self._wake, message.wake), False
            if self._in_step is not None:
                self._in_step.heard(self._wake)
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Finish) and message.request_id in self._ours:
            ours = self._ours[message.request_id]
            self._engine.finish(ours, message.reason)
            self._forget(ours)
        elif isinstance(message, StatsAsk):
            self._line.send(Stats(number=message.number, stats=self._engine.stats()))
        elif isinstance(message, ExpertsAsk):
            self._ask_experts(message)
        elif isinstance(message, Close):
            self._closing = True
            for ours in list(self._theirs):
                self._engine.finish(ours, "abort")
                self._forget(ours)

    def _submit(self, asked: Submit) -> None:
        """The driver has checked it; what this engine refuses all the same ends it."""
        submit = partial(self._engine.submit, priority=asked.priority, cache_salt=asked.cache_salt)
        try:
            ours = submit(asked.prompt_ids, asked.params)
        except ValueError as error:
            failed = [TokenEvent(i, [], finish_reason="error", error=str(error)) for i in asked.request_ids]
            self._line.send(Events(events=failed, admitted=[]))
            return
        self._theirs |= dict(zip(ours, asked.request_ids, strict=True))
        self._ours |= dict(zip(asked.request_ids, ours, strict=True))

    def _ask_experts(self, asked: ExpertsAsk) -> None:
        """Every rank adds up its loads after the next step, or balances; then this one answers."""
        line, in_step, balancer = self._line, self._in_step, self._balancer
        if in_step is None or balancer is None:
            why = "experts stay where they are here (balancer=static): type balancer=eplb"
            line.send(Experts(number=asked.number, error=why))
            return

        def answer() -> None:
            try:
                if asked.path:
                    balancer.save(asked.path)
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                line.send(Experts(number=asked.number, error=f"{asked.path}: {why}"))
                return
            line.send(Experts(number=asked.number, state=balancer.inspect()))

        in_step.ask((FINISH if asked.at_once else BALANCE) if asked.balance else GATHER, answer)

    def _step(self) -> None:
        events = self._engine.step()
        told = []
        for event in events:
            ours = event.request_id
            if ours in self._theirs:
                event.request_id = self._theirs[ours]
                told.append(event)
                if event.finish_reason is not None:
                    self._forget(ours)
        if told:
            self._tell(told)
        if texts := self._engine.take_notices():
            self._line.send(Notice(texts=texts))

    def _tell_admitted(self, admitted: list[int]) -> None:
        """Before their step, which may take long: so that the driver can tell how long they waited."""
        self._line.send(Events(events=[], admitted=[self._theirs[i] for i in admitted if i in self._theirs]))

    def _tell(self, events: list[TokenEvent]) -> None:
        """An event that no message carries ends its request."""
        try:
            self._line.send(Events(events=events, admitted=[]))
        except MessageTooLarge as error:
            if len(events) > 1:
                for event in events:
                    self._tell([event])
                return
            (event,) = events
            if event.request_id in self._ours:
                ours = self._ours[event.request_id]
                self._engine.finish(ours, "error")
                self._forget(ours)
            failed = TokenEvent(event.request_id, [], finish_reason="error", error=f"its results are {error}")
            self._line.send(Events(events=[failed], admitted=[]))

    def _forget(self, ours: int) -> None:
        self._ours.pop(self._theirs.pop(ours))
