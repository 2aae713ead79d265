"""An executor in a thread: calls in order, results as they come, an error where somebody waits for it."""

import threading

import numpy as np
import pytest
from toy_executor import SomeDrafts, ToyExecutor, assert_empty, expected_answer, run_all, toy_limits

from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.interfaces import SamplingParams


class Watched(ToyExecutor):
    """Notes who calls, and may break."""

    breaks_at: int | None = None

    def submit(self, plan) -> None:
        self.threads.add(threading.get_ident())
        if self.breaks_at == len(self.plans):
            raise RuntimeError("the device is gone")
        super().submit(plan)

    threads: set[int]


def threaded(draft_depth: int = 3) -> tuple[Engine, Watched]:
    limits = toy_limits(async_depth=1, draft_depth=draft_depth, num_blocks=20, max_num_batched_tokens=40)
    inner = Watched(limits)
    inner.threads = set()
    lengths = SomeDrafts() if draft_depth else None
    return Engine(ThreadedExecutor(inner), limits, lengths=lengths, seed_entropy=5, poison_freed=True), inner


@pytest.mark.parametrize("draft_depth", [0, 3])
def test_answers_are_those_of_a_lone_run(draft_depth: int) -> None:
    engine, inner = threaded(draft_depth)
    params = [SamplingParams(max_tokens=25, seed=k, ignore_eos=True) for k in range(8)]
    ids = [engine.submit(np.arange(1, 4 + 5 * k), one)[0] for k, one in enumerate(params)]
    early = [event for _ in range(2) for event in engine.step()]
    assert engine.abort(ids[0])
    ends = run_all(engine)
    for k, request_id in enumerate(ids[1:], start=1):
        tokens = [token for event in early if event.request_id == request_id for token in event.token_ids]
        wanted = expected_answer(list(range(1, 4 + 5 * k)), k, params[k], engine.limits)
        assert tokens + ends[request_id][0] == wanted
    assert engine.stats().preemptions > 0 and engine.stats().steps_ahead > 10
    assert len(inner.threads) == 1 and threading.get_ident() not in inner.threads
    engine.close()
    engine.executor = inner
    assert_empty(engine)


def test_an_error_of_the_device_reaches_whoever_waits() -> None:
    engine, inner = threaded()
    inner.breaks_at = 3
    engine.submit(np.arange(1, 6), SamplingParams(max_tokens=20, ignore_eos=True))
    with pytest.raises(RuntimeError, match="the device is gone"):
        run_all(engine)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.executor.collect()
