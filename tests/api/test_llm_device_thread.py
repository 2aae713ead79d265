"""An LLM whose device has a thread of its own, with steps ahead: interrupts, failures and ends at any moment."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_llm import make_llm

from deepinfer.api import LLM, SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
MAIN = threading.main_thread().ident


@pytest.fixture(params=[0, 1], ids=["after", "ahead"])
def threaded(request: pytest.FixtureRequest, tokenizer: BpeTokenizer) -> Iterator[LLM]:
    llm = make_llm(tokenizer, draft_depth=3, async_depth=request.param, threaded=True)
    yield llm
    llm.close()
    assert not llm.engine.executor._thread.is_alive()


def at_step(llm: LLM, number: int, act) -> None:
    """Calls `act` in the device's thread at this step from now on."""
    steps = iter(range(1, 10**9))

    def on_step() -> None:
        if next(steps) == number:
            act()

    llm.engine.executor.inner.on_step = on_step


def ctrl_c() -> None:
    assert MAIN is not None
    signal.pthread_kill(MAIN, signal.SIGINT)


def test_results_are_those_of_one_thread(threaded: LLM, llm: LLM) -> None:
    prompts = [chr(ord("a") + i % 20) * (1 + i % 7) for i in range(40)]
    found, expected = threaded.generate(prompts, GREEDY), llm.generate(prompts, GREEDY)
    assert [(out.text, out.token_ids) for out in found] == [(out.text, out.token_ids) for out in expected]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_ctrl_c_aborts_between_steps_and_leaves_the_llm_usable(threaded: LLM, number: int) -> None:
    at_step(threaded, number, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        threaded.generate(["a"] * 20, LONG)
    assert threaded.engine.unfinished == 0 and threaded.engine.stats().blocks_used == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [out.text for out in threaded.generate(["x", "m"], GREEDY)] == ["yz", "nopqrstu"]


def test_ctrl_c_in_a_stream_ends_it_and_the_next_one_runs(threaded: LLM) -> None:
    at_step(threaded, 3, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        list(threaded.stream("a", LONG))
    assert threaded.engine.unfinished == 0
    assert "".join(event.text for event in threaded.stream("x", GREEDY)) == "yz"


def test_a_step_that_a_handler_of_the_application_cuts_short_says_why_nothing_more_runs(threaded: LLM) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop("enough")

    before = signal.signal(signal.SIGINT, stop)
    try:
        at_step(threaded, 2, lambda: (ctrl_c(), time.sleep(0.05)))
        with pytest.raises(Stop):
            threaded.generate(["a"] * 3, LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert threaded.generate("x", GREEDY)[0].text == "yz"  # the handler ran between two steps
    except RuntimeError as error:
        assert "cut short by Stop (enough); make a new one" in str(error)


@pytest.mark.parametrize("number", [1, 4])
def test_what_the_device_raises_reaches_the_caller_once_and_then_the_llm_is_broken(threaded: LLM, number: int) -> None:
    def fail() -> None:
        raise OSError("device lost")

    at_step(threaded, number, fail)
    stream = threaded.stream("b", LONG)
    with pytest.raises(OSError, match="device lost"):
        next(stream)
        threaded.generate(["a"] * 3, LONG)
    for use in (lambda: threaded.generate("x", GREEDY), lambda: threaded.stream("x"), lambda: threaded.chat("x")):
        with pytest.raises(RuntimeError, match=r"broken: .*OSError \(device lost\); make a new one"):
            use()
    threaded.close()
    with pytest.raises(RuntimeError, match="closed"):
        threaded.generate("x", GREEDY)


def test_every_thread_that_waits_hears_of_a_lost_device(threaded: LLM) -> None:
    heard: list[type[BaseException]] = []

    def work() -> None:
        try:
            threaded.generate(["a"] * 4, LONG)
        except (OSError, RuntimeError) as error:
            heard.append(type(error))

    def fail() -> None:
        raise OSError("device lost")

    at_step(threaded, 30, fail)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert sorted(kind.__name__ for kind in heard) == ["OSError", "RuntimeError", "RuntimeError"]


def test_close_from_another_thread_while_a_step_runs(threaded: LLM) -> None:
    reached = threading.Event()
    at_step(threaded, 5, lambda: (reached.set(), time.sleep(0.05)))

    def close() -> None:
        reached.wait(20)
        threaded.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(RuntimeError, match="closed"):
        threaded.generate(["a"] * 200, LONG)
    closer.join(20)
    assert not closer.is_alive() and threaded.engine.executor.inner.closed


def test_close_with_a_step_in_flight_lets_it_end(tokenizer: BpeTokenizer) -> None:
    llm = make_llm(tokenizer, draft_depth=3, async_depth=1, threaded=True)
    stream = llm.stream("a", LONG)
    next(stream)
    assert llm.engine._flying is not None
    at_step(llm, 1, lambda: time.sleep(0.05))
    llm.close()
    llm.close()
    assert llm.engine.executor.inner.closed and not llm.engine.executor._thread.is_alive()
    with pytest.raises(RuntimeError, match="this executor is closed"):
        while True:
            llm.engine.executor.collect()


def test_an_llm_that_is_forgotten_takes_its_thread_along(tokenizer: BpeTokenizer) -> None:
    llm = make_llm(tokenizer, async_depth=1, threaded=True)
    llm.generate("x", GREEDY)
    thread, gone = llm.engine.executor._thread, weakref.ref(llm.engine.executor)
    del llm
    gc.collect()
    thread.join(20)
    assert gone() is None and not thread.is_alive()


SCRIPT = """
import sys, time
from pathlib import Path
from toy_llm import make_llm
from deepinfer.api import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
llm = make_llm(BpeTokenizer(Path(sys.argv[1])), draft_depth=3, async_depth=1, threaded=True)
stream = llm.stream("a", SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
print(next(stream).text)
llm.engine.executor.inner.on_step = lambda: time.sleep(0.3)
next(stream)
if sys.argv[2] == "raise":
    raise OSError("at the end")
"""


@pytest.mark.parametrize(("end", "code"), [("return", 0), ("raise", 1)])
def test_the_interpreter_ends_without_close_and_with_a_step_in_flight(
    tokenizer: BpeTokenizer, end: str, code: int
) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    line = [sys.executable, "-c", SCRIPT, str(tokenizer.path), end]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "b\n"), done.stderr
    assert "Fatal" not in done.stderr and ("at the end" in done.stderr) == bool(code)
