"""The line between the event loop and the engine, as the loop sees it: ask, hear, end. Nothing here needs a lock.

The loop is woken once for each step of the engine, with all that it brought (see `engine_thread`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from deepinfer.serving.answers import ENGINE_LOST, SHUTTING_DOWN, Answers
from deepinfer.serving.engine_thread import EngineLost, EngineThread, Tell

if TYPE_CHECKING:
    from deepinfer.engine.events import TokenEvent
    from deepinfer.engine.stats import EngineStats
    from deepinfer.interfaces import FinishReason
    from deepinfer.serving.jobs import Job
    from deepinfer.serving.served import Served

CLOSING_S = 12.0  # for the engine to end: a little more than its ranks have
STARTING_S = 1.0  # where it has not been built yet
State = Literal["starting", "ready", "restarting", "draining", "failed", "closed"]


class NotServing(Exception):
    """No request is taken now: the engine is starting, draining or lost."""

    def __init__(self, why: str, code: str, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.code, self.retry_after_s = code, retry_after_s


class QueueFull(Exception):
    """As many answers wait for a place as may."""


class EngineLine:
    """`start(tell)` builds the engine in a thread of its own once the line is opened. What comes of it, `state` says.

    `on_step(num_tokens, intervals_s)` is called once for each step that brought news, `on_state(state)` whenever it changes,
    `on_stats(stats)` about once a second.
    """

    def __init__(self, start: Callable[[Tell], Served], *, max_waiting: int = 1024) -> None:
        self.state: State = "starting"
        self.phase, self.cause = "starting", ""  # what it is at; why it failed
        self.failure: BaseException | None = None
        self.served: Served | None = None
        self.stats: EngineStats | None = None  # about a second old
        self.num_waiting = 0  # answers that the engine has not begun to compute
        self.num_steps = 0  # that brought news
        self.on_step: Callable[[int, list[float]], None] = lambda num_tokens, intervals_s: None
        self.on_state: Callable[[State], None] = lambda state: None
        self.on_stats: Callable[[EngineStats], None] = lambda stats: None
        self._start, self._max_waiting = start, max_waiting
        self._since_s = time.monotonic()
        self._places: dict[int, tuple[Answers, int]] = {}  # request id → whose answer, its index
        self._unadmitted: set[int] = set()
        self._asking: set[asyncio.Future[None]] = set()  # jobs that the engine has not taken or refused
        self._thread: EngineThread | None = None

    def open(self) -> None:
        """Start the engine. Call it on the loop."""
        self._since_s, self.loop = time.monotonic(), asyncio.get_running_loop()
        self._thread = EngineThread(self._start, self, self.loop)

    @property
    def seconds(self) -> float:
        """Since this state began."""
        return time.monotonic() - self._since_s

    @property
    def num_open(self) -> int:
        """Answers in flight."""
        return len(self._places)

    @property
    def num_running(self) -> int:
        """Answers that are being computed."""
        return len(self._places) - len(self._unadmitted)

    async def ask(self, job: Job, *, priority: int = 0, queue_checked: bool = False) -> Answers:
        """Hand over a job; `queue_checked`: it belongs to a request that was let into the queue. Raises NotServing, QueueFull,
        or a ValueError that says what the engine refuses about it."""
        num = job.params.n
        self.check(0 if queue_checked else num)
        assert self._thread is not None, "the line is open"
        answers = Answers(len(job.prompt_ids), num, time.monotonic(), self._stop)
        done: asyncio.Future[None] = self.loop.create_future()
        self.num_waiting += num

        def taken(request_ids: list[int]) -> None:
            answers.request_ids = request_ids
            self._unadmitted.update(request_ids)
            self._places.update((request_id, (answers, index)) for index, request_id in enumerate(request_ids))
            if done.done():  # whoever asked has gone meanwhile, or was told that nothing comes of it
                answers.abort()
            else:
                done.set_result(None)

        def refused(error: Exception) -> None:
            self.num_waiting -= num
            if not done.done():
                done.set_exception(error)

        self._asking.add(done)
        self._thread.submit(job, priority, taken, refused)
        try:
            await done
        except EngineLost as error:
            raise NotServing(f"the engine is lost: {error}", ENGINE_LOST) from error
        except asyncio.CancelledError:
            if answers.request_ids:  # they were taken before this task heard of it
                answers.abort()
            raise
        finally:
            self._asking.discard(done)
        return answers

    def check(self, num: int = 1) -> None:
        """Raises NotServing or QueueFull where `num` more answers cannot be taken now."""
        if self.state in ("draining", "closed"):
            raise NotServing("this server is shutting down", SHUTTING_DOWN, 1.0)
        if self.state == "failed":
            raise NotServing(f"the engine is lost: {self.cause}", ENGINE_LOST)
        if self.served is None:
            raise NotServing(f"the engine is starting: {self.phase} ({self.seconds:.0f} s)", "starting", 2.0)
        waiting = self.num_waiting - max(0, self.served.num_places - self.num_running)  # the first of them have a place
        if num and self.num_waiting and waiting + num > self._max_waiting:
            told = f"{max(0, waiting)} answers wait already, and {self._max_waiting} may (serving.max_waiting)"
            raise QueueFull(told)

    def drain(self) -> None:
        """Take no request from now on; those in flight go on."""
        self._enter("draining")

    def end_all(self, why: str, code: str) -> None:
        """End whatever is in flight with an error, and refuse what the engine has not taken yet."""
        for done in self._asking:
            if not done.done():
                done.set_exception(NotServing(why, code))
        for answers in {id(answers): answers for answers, _ in self._places.values()}.values():
            answers.fail(why, code)

    async def close(self) -> None:
        """End the engine and its thread. One that does not end in time ends with the process, and its ranks with it."""
        self.end_all("this server is shutting down", SHUTTING_DOWN)
        self._enter("closed")
        if self._thread is not None:
            self._thread.close()
            deadline_s = time.monotonic() + (STARTING_S if self.served is None else CLOSING_S)
            while self._thread.is_alive and time.monotonic() < deadline_s:
                await asyncio.sleep(0.02)

    # --- what the thread tells, on the loop ------------------------------------------------------------------------

    def starting(self, phase: str) -> None:
        self._enter("starting" if self.served is None else "restarting", phase)

    def ready(self, served: Served) -> None:
        self.served = served
        self._enter("ready")

    def running(self) -> None:
        self._enter("ready")

    def counted(self, stats: EngineStats) -> None:
        self.stats = stats
        self.on_stats(stats)

    def failed(self, cause: str, failure: BaseException | None) -> None:
        self.cause, self.failure = cause, failure
        self.end_all(cause, ENGINE_LOST)
        self._enter("failed")

    def delivered(self, events: Sequence[TokenEvent], admitted: Sequence[int]) -> None:
        """What a step brought."""
        if admitted:
            self._admitted(admitted)
        now_s, places, num_tokens = time.monotonic(), self._places, 0
        intervals_s: list[float] = []
        for event in events:
            place = places.get(event.request_id)
            if place is None:
                continue
            answers, index = place
            if event.token_ids:
                num_tokens += len(event.token_ids)
                last_s, answers.last_s[index] = answers.last_s[index], now_s
                if last_s is not None:
                    intervals_s.append(now_s - last_s)
                elif answers.timings.first_token_ms is None:
                    answers.timings.first_token_ms = (now_s - answers.started_s) * 1e3
                    answers.on_first(answers)
            if event.finish_reason is not None:
                self._forget(event.request_id)
            answers.push(index, event)
        if events:
            self.num_steps += 1
            self.on_step(num_tokens, intervals_s)

    def _admitted(self, request_ids: Sequence[int]) -> None:
        now_s = time.monotonic()
        for request_id in request_ids:
            if request_id in self._unadmitted:
                self._unadmitted.discard(request_id)
                self.num_waiting -= 1
                place = self._places.get(request_id)
                if place is not None and place[0].timings.queue_ms is None:
                    place[0].timings.queue_ms = (now_s - place[0].started_s) * 1e3

    def _forget(self, request_id: int) -> None:
        del self._places[request_id]
        if request_id in self._unadmitted:
            self._unadmitted.discard(request_id)
            self.num_waiting -= 1

    def _stop(self, answers: Answers, index: int, reason: FinishReason) -> None:
        request_id = answers.request_ids[index]
        if request_id in self._places:
            self._forget(request_id)
            assert self._thread is not None, "the line is open"
            self._thread.finish(request_id, reason)

    def _enter(self, state: State, phase: str = "") -> None:
        final = {"failed": ("closed",), "closed": (), "draining": ("failed", "closed")}
        if state != self.state and state not in final.get(self.state, (state,)):
            return
        changed, self.state, self.phase = state != self.state, state, phase or state
        if changed:
            self._since_s = time.monotonic()
            self.on_state(state)
