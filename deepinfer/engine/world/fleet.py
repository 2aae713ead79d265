"""The engine of many ranks as its driver sees it: requests are handed to the leader with the least to do, and their tokens come
back. Used like `engine.engine.Engine`, by one thread at a time.

The driver draws ids and seeds, so that answers do not depend on who computes them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.limits import EngineLimits, RequestRefused
from deepinfer.engine.request_checks import checked_place, checked_request
from deepinfer.engine.seeds import SeedSource
from deepinfer.engine.stats import EngineStats
from deepinfer.engine.world import messages
from deepinfer.engine.world.asked import Asked
from deepinfer.engine.world.open_requests import OpenRequests
from deepinfer.engine.world.questions import Questions
from deepinfer.engine.world.world import World, WorldLost
from deepinfer.interfaces import FinishReason, SamplingParams
from deepinfer.parallel.channel import MessageTooLarge
from deepinfer.parallel.eplb.balancer import BalancerState
from deepinfer.sampling.params import ParamsError

WAIT_S = 0.1  # for news in a step: whoever steps looks for Ctrl-C in between


class Fleet:
    """`start` gives a world that is ready. `leaders` are its ranks that take requests; `in_step`: they run steps together.

    `restarts`: how often lost ranks may be started again, with all unfinished requests. `prepare` raises ParamsError.
    """

    def __init__(
        self,
        start: Callable[[], World],
        limits: EngineLimits,
        *,
        leaders: Sequence[int],
        in_step: bool = False,
        restarts: int = 0,
        prepare: Callable[[SamplingParams], None] = lambda params: None,
        on_close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits, self.clock = limits, clock
        self.newly_admitted: list[int] = []
        self._start, self._leaders, self._in_step, self._restarts = start, list(leaders), in_step, restarts
        self._prepare, self._on_close, self._seeds = prepare, on_close, SeedSource()
        self._open = OpenRequests(self._leaders)
        self._pending: list[TokenEvent] = []
        self._admitted: list[int] = []  # since the newest step
        self._questions = Questions(self._leaders, self._hear, self._usable, self._send_waking)
        self._next_id = self._refused = 0
        self._maker_pid = os.getpid()
        self._closed, self.lost = False, ""  # `lost`: why nothing can be run any more
        self.cause = ""  # of it, without advice
        self.world = start()
        self._notices, self._noticed = list(self.world.notices), set(self.world.notices)

    def submit(
        self, prompt_ids: object, params: SamplingParams, *, priority: int = 0, cache_salt: str = ""
    ) -> list[int]:
        """As `Engine.submit`, with the same errors; refuses everything once ranks were lost for good."""
        self._hear(0.0)
        try:
            prompt, params, _ = checked_request(prompt_ids, params, self.limits)
            priority, cache_salt = checked_place(priority, cache_salt)
            self._prepare(params)
            if self._why_not:
                raise RequestRefused(self._why_not)
        except (RequestRefused, ParamsError):
            self._refused += 1
            raise
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self._seeds.draw())
        request_ids = list(range(self._next_id, self._next_id + params.n))
        asked = Asked(prompt, params, priority, cache_salt, request_ids)
        try:
            self._hand_over(asked)
        except (MessageTooLarge, messages.MalformedMessage) as error:
            self._refused += 1
            raise RequestRefused(str(error)) from error
        self._next_id += params.n
        return request_ids

    def abort(self, request_id: int) -> bool:
        """As `Engine.abort`."""
        if not self.finish(request_id, "abort"):
            return False
        self._pending.append(TokenEvent(request_id, [], finish_reason="abort"))
        return True

    def finish(self, request_id: int, reason: FinishReason = "stop") -> bool:
        """As `Engine.finish`."""
        if request_id not in self._open or self._is_forked:
            return False
        self.world.send(self._open[request_id].leader, messages.Finish(request_id=request_id, reason=reason))
        self._open.end(request_id)
        return True

    def step(self) -> list[TokenEvent]:
        """What has come since: waits for it a moment where nothing has. A loss of ranks ends all requests, or restarts them."""
        self._hear(0.0 if self._pending or not self._open else WAIT_S)
        self.newly_admitted, self._admitted = self._admitted, []
        events, self._pending = self._pending, []
        return events

    def nudge(self) -> None:
        """End the wait of a `step` in another thread."""
        self.world.nudge()

    def stats(self) -> EngineStats:
        """The sums of all leaders, the last ones where they are lost or closed. Raises WorldLost where there are none."""
        return self._questions.stats(refused=self._refused)

    def ask_experts(self, *, balance: bool = False, at_once: bool = False, path: str = "") -> BalancerState:
        """What the balancer of experts is at; has it `balance` first, and save placement and loads to `path` at the first rank.
        Experts move beside the steps that follow, or `at_once`, while steps wait.

        Raises ValueError where experts stay where they are, or nothing can be saved; WorldLost as `stats`.
        """
        return self._questions.experts(balance=balance, at_once=at_once, path=path)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def close(self) -> None:
        """End all requests and all ranks; only the requests in a fork of the process, where the ranks are another's."""
        self._open.end_all()
        self._closed = True
        if self._is_forked:
            return
        self.world.close()
        self._on_close()

    def _hand_over(self, asked: Asked) -> None:
        """To the leader with the least to do, the first of them."""
        asked.leader = self._open.least_loaded()

        def message(wake: int) -> messages.Message:
            return messages.Submit(
                request_ids=asked.request_ids,
                prompt_ids=asked.prompt_ids,
                params=asked.params,
                priority=asked.priority,
                cache_salt=asked.cache_salt,
                wake=wake,
            )

        self._send_waking(asked.leader, message)
        self._open.add(asked)

    def _send_waking(self, leader: int, message: Callable[[int], messages.Message]) -> None:
        """Send a numbered message, of which all who run steps with `leader` must know. Raises MessageTooLarge
        or MalformedMessage, and wakes nobody then."""
        wake = self.world.next_wake()
        self.world.send(leader, messages.checked(message(wake)))
        for other in self._leaders if self._in_step else ():
            if other != leader:
                self.world.send(other, messages.Poke(wake=wake))

    def _hear(self, wait_s: float) -> None:
        """Take in what ranks have said; waits `wait_s` for the first."""
        if self._why_not:
            self._pending += [
                TokenEvent(i, [], finish_reason="error", error=self._why_not) for i in self._open.end_all()
            ]
            return
        try:
            while (news := self.world.next(wait_s)) is not None:
                self._take(*news)
                wait_s = 0.0
        except WorldLost as lost:
            self._lose(lost)

    def _take(self, rank: int, message: messages.ToDriver) -> None:
        if isinstance(message, messages.Events):
            self._admitted += [i for i in message.admitted if i in self._open]
            for event in message.events:
                if event.request_id in self._open:
                    self._hear_event(rank, event)
        elif isinstance(message, (messages.Stats, messages.Experts)):
            self._questions.take(rank, message)
        elif isinstance(message, messages.Notice):
            self._notice(message.texts)

    def _hear_event(self, rank: int, event: TokenEvent) -> None:
        news = self._open[event.request_id].open[event.request_id].news(event)
        if news is None:
            return
        self._pending.append(news)
        if news.finish_reason is not None:
            if event.finish_reason is None:  # it contradicts what was told before a restart
                self.world.send(rank, messages.Finish(request_id=event.request_id, reason="error"))
            self._open.end(event.request_id)

    def _notice(self, texts: Sequence[str]) -> None:
        self._notices += [text for text in dict.fromkeys(texts) if text not in self._noticed]
        self._noticed |= set(texts)

    def _lose(self, lost: WorldLost) -> None:
        """Ranks are gone: start anew as often as allowed, else every request ends with the reason."""
        self.world.close()
        while self._restarts > 0:
            self._restarts -= 1
            print(f"deepinfer: {lost}; all ranks are started again", file=sys.stderr)
            try:
                self.world = self._start()
            except WorldLost as again:
                lost = again
                continue
            self._repeat()
            return
        self.cause = str(lost)
        self.lost = f"this LLM is broken: {lost}; make a new one"
        ended = self._open.end_all()
        self._pending += [TokenEvent(i, [], finish_reason="error", error=str(lost)) for i in ended]

    def _repeat(self) -> None:
        """Hand over again whatever has not ended."""
        for asked in self._open.take_all():
            for told in asked.open.values():
                told.repeat()
            self._hand_over(asked)
            for request_id in asked.request_ids:
                if request_id not in asked.open:
                    self.world.send(asked.leader, messages.Finish(request_id=request_id, reason="stop"))

    @property
    def _why_not(self) -> str:
        """Why nothing can be asked any more; empty where it can."""
        if self._is_forked:
            return f"this LLM is of process {self._maker_pid}, of which this one is a fork; make a new one here"
        return self.lost or ("this LLM is closed; make a new one" if self._closed else "")

    @property
    def _is_forked(self) -> bool:
        """Whether this is a copy in another process: the lines to the ranks are its maker's."""
        return os.getpid() != self._maker_pid

    def _usable(self) -> World:
        """The present world. Raises WorldLost."""
        if self._why_not:
            raise WorldLost(self._why_not)
        return self.world
