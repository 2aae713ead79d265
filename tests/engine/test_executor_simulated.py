"""The simulated device: time passes as told, tokens repeat."""

import numpy as np
import pytest
from msgspec.structs import replace

from deepinfer.engine.clocks import RealClock, VirtualClock
from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepPlan
from deepinfer.sampling.params import ParamsError
from deepinfer.speculation.fixed import FixedLengths

LIMITS = EngineLimits(
    vocab_size=100,
    ngram_size=2,
    max_model_len=64,
    max_num_seqs=8,
    max_num_batched_tokens=32,
    max_prefill_tokens=32,
    num_blocks=32,
    block_tokens=16,
)


def simulated(clock: VirtualClock | None = None, *, depth: int = 0, step_time_s: float = 0.0) -> SimulatedExecutor:
    state = DecodeState(num_slots=8, max_model_len=64, ngram_size=2, depth=depth)
    return SimulatedExecutor(vocab_size=100, state=state, step_time_s=step_time_s, clock=clock)


def answers(order: list[int], *, max_num_seqs: int = 8, depth: int = 0, ahead: int = 0) -> dict[int, list[int]]:
    executor = simulated(depth=depth, step_time_s=0.25)
    limits = replace(LIMITS, max_num_seqs=max_num_seqs, draft_depth=depth, async_depth=ahead)
    engine = Engine(executor, limits, lengths=FixedLengths(depth) if depth else None, clock=executor.clock.now)
    names = {}
    for name in order:
        names[engine.submit(np.array([name, 5, 6]), SamplingParams(max_tokens=10, seed=name))[0]] = name
    tokens: dict[int, list[int]] = {name: [] for name in order}
    while engine.has_work:
        for event in engine.step():
            tokens[names[event.request_id]] += event.token_ids
    stats = engine.stats()
    assert stats.step_s == stats.model_s == 0.25 * stats.steps == executor.clock.now()
    assert executor.busy_s == stats.model_s and executor.idle_s == 0
    if depth:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    return tokens


def test_tokens_depend_on_the_sequence_alone() -> None:
    alone = answers([1, 2, 3], max_num_seqs=1)
    assert answers([3, 1, 2]) == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 3 and all(len(t) == 10 for t in alone.values())


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("ahead", [0, 1])
def test_drafts_and_steps_ahead_change_no_token(depth: int, ahead: int) -> None:
    assert answers([1, 2, 3, 4], depth=depth, ahead=ahead) == answers([1, 2, 3, 4])


def lone_plan() -> StepPlan:
    return decode_plan(np.zeros(1, np.int64), np.zeros((1, 1), np.int64))


def test_steps_follow_one_another_on_the_device() -> None:
    clock = VirtualClock()
    executor = simulated(clock, step_time_s=1.0)
    request = Request(request_id=0, prompt_ids=np.array([3, 7]), params=SamplingParams(), seed=1)
    executor.admit(0, request, length_end=20)
    executor.submit(lone_plan())
    executor.sample(SampleInput())
    executor.submit(lone_plan())
    assert clock.now() == 0.0
    executor.collect()
    assert clock.now() == 1.0
    clock.wait_until(1.5)  # the host is busy: the device works on
    executor.sample(SampleInput())
    executor.collect()
    assert clock.now() == 2.0 and executor.idle_s == 0.0
    clock.wait_until(2.25)  # and now it has nothing to do
    executor.submit(lone_plan())
    clock.wait_until(4.0)  # its forward pass is through and waits for the masks
    executor.sample(SampleInput())
    executor.collect()
    assert clock.now() == 4.0 and (executor.busy_s, executor.idle_s) == (3.0, 1.0)


def test_the_real_clock_waits() -> None:
    clock = RealClock()
    started_s = clock.now()
    clock.wait_until(started_s + 0.01)
    assert clock.now() >= started_s + 0.01
    clock.wait_until(started_s)  # the past needs no waiting


def test_results_come_in_order_only() -> None:
    executor = simulated()
    with pytest.raises(IndexError):
        executor.collect()


@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"prompt_logprobs": 3}, {"logprobs": 2, "prompt_logprobs": 1}])
def test_what_comes_of_probabilities_is_refused(asked: dict[str, int]) -> None:
    engine = Engine(simulated(), LIMITS)
    named = " and ".join(f"{name}={value}" for name, value in asked.items())
    with pytest.raises(ParamsError, match=f"{named}: a simulation invents tokens.*type executor=local"):
        engine.submit(np.array([1, 2]), SamplingParams(**asked))
    assert (engine.unfinished, engine.stats().refused) == (0, 1)
