"""The line to the engine: nobody who asks is forgotten, whatever the engine is at."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from deepinfer.engine.events import TokenEvent
from deepinfer.interfaces import SamplingParams
from deepinfer.serving.answers import Answers
from deepinfer.serving.engine_line import EngineLine, NotServing, QueueFull
from deepinfer.serving.jobs import Job

JOB = Job(prompt_ids=[1, 2], params=SamplingParams(max_tokens=4))


class Engine:
    """Takes requests and computes nothing. While `held`, a submission waits, as one does while ranks are started again."""

    def __init__(self) -> None:
        self.newly_admitted, self.finished, self.num_closed = [], [], 0
        self.free, self.reached = threading.Event(), threading.Event()
        self.free.set()
        self.fault: Exception | None = None
        self._next_id = 0

    def submit(self, prompt_ids, params, *, priority, cache_salt):
        self.reached.set()
        assert self.free.wait(20)
        if self.fault is not None:
            raise self.fault
        self._next_id += params.n
        return list(range(self._next_id - params.n, self._next_id))

    def step(self):
        threading.Event().wait(0.005)
        return []

    def finish(self, request_id, reason):
        self.finished.append((request_id, reason))

    def stats(self):
        return SimpleNamespace()

    def take_notices(self):
        return []

    def close(self):
        self.num_closed += 1


def served_by(engine, num_places=1):
    return SimpleNamespace(engine=engine, notices=("a notice of the build",), num_places=num_places)


async def until(condition, within_s=10.0):
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


async def opened(engine) -> EngineLine:
    line = EngineLine(lambda tell: served_by(engine))
    line.open()
    await until(lambda: line.state == "ready")
    return line


async def asking(line, engine):
    """A task whose job the engine has in hand and has not taken."""
    engine.free.clear()
    task = asyncio.ensure_future(line.ask(JOB))
    await until(engine.reached.is_set)
    return task


def test_whoever_asked_for_what_breaks_the_engine_is_told():
    async def main():
        engine = Engine()
        engine.fault = FloatingPointError("a fault in the engine")
        line = await opened(engine)
        with pytest.raises(NotServing, match="a fault in the engine"):
            await asyncio.wait_for(line.ask(JOB), 10)
        await until(lambda: line.state == "failed")
        with pytest.raises(NotServing, match="a fault in the engine"):
            await line.ask(JOB)
        assert line.num_waiting == line.num_open == 0
        await line.close()

    asyncio.run(main())


def test_a_job_that_is_not_taken_yet_is_refused_when_all_ends_and_runs_for_nobody():
    async def main():
        engine = Engine()
        line = await opened(engine)
        task = await asking(line, engine)
        line.end_all("told to stop", "shutting_down")
        with pytest.raises(NotServing, match="told to stop") as refused:
            await asyncio.wait_for(task, 10)
        assert refused.value.code == "shutting_down"
        engine.free.set()
        await until(lambda: engine.finished)
        assert engine.finished == [(0, "abort")] and line.num_waiting == line.num_open == 0
        await line.close()

    asyncio.run(main())


def test_whoever_goes_in_the_moment_in_which_a_job_is_taken_leaves_nothing_running():
    async def main():
        engine = Engine()
        line = await opened(engine)
        task = asyncio.ensure_future(line.ask(JOB))
        while not line.num_open:  # `taken` has run, and the task has not been woken
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: engine.finished)
        assert engine.finished == [(0, "abort")] and line.num_open == 0
        await line.close()

    asyncio.run(main())


def test_a_start_ends_when_the_line_is_closed():
    async def main():
        engine, began = Engine(), threading.Event()

        def restart(tell):
            while True:  # ranks load their weights, and say so
                tell("loading weights")
                began.set()
                threading.Event().wait(0.01)

        def start(tell):
            engine.step = lambda: restart(tell)
            return served_by(engine)

        line = EngineLine(start)
        line.open()
        await until(lambda: line.state == "ready")
        await line.ask(JOB)
        await until(began.is_set)
        await until(lambda: line.state == "restarting")
        await asyncio.wait_for(line.close(), 5)
        await until(lambda: engine.num_closed == 1)
        assert line.state == "closed"

    asyncio.run(main())


def test_closing_does_not_wait_for_an_engine_that_hangs(monkeypatch):
    monkeypatch.setattr("deepinfer.serving.engine_line.CLOSING_S", 0.1)

    async def main():
        engine = Engine()
        line = await opened(engine)
        task = await asking(line, engine)
        await asyncio.wait_for(line.close(), 5)
        with pytest.raises(NotServing):
            await asyncio.wait_for(task, 5)
        engine.free.set()

    asyncio.run(main())


def test_the_logprobs_of_a_slow_reader_grow_in_place():
    answers = Answers(2, 1, 0.0, lambda *_: None)

    def push(token_id):
        logprobs = [SimpleNamespace(token_id=token_id)]
        answers.push(0, TokenEvent(0, [token_id], logprobs=logprobs, prompt_logprobs=list(logprobs)))

    push(0)
    piece = answers._news[0]
    before = piece.logprobs, piece.prompt_logprobs
    for token_id in range(1, 50):
        push(token_id)
    assert piece.logprobs is before[0] and piece.prompt_logprobs is before[1]
    assert [each.token_id for each in piece.logprobs] == piece.token_ids == list(range(50))


def test_answers_that_have_a_place_do_not_wait():
    async def main():
        line = EngineLine(lambda tell: served_by(Engine(), num_places=2), max_waiting=3)
        line.open()
        await until(lambda: line.state == "ready")
        for _ in range(5):  # none of them was begun yet: two will be, and three wait
            await line.ask(JOB)
        with pytest.raises(QueueFull, match="3 answers wait already, and 3 may"):
            await line.ask(JOB)
        line.delivered([], [0, 1])
        assert (line.num_running, line.num_waiting) == (2, 3)
        with pytest.raises(QueueFull):
            await line.ask(JOB)
        await line.close()

    asyncio.run(main())


def test_what_was_noticed_while_it_was_built_is_said(capfd):
    async def main():
        await (await opened(Engine())).close()

    asyncio.run(main())
    assert capfd.readouterr().err.count("a notice of the build") == 1
