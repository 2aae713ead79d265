"""The simulated device: time passes as told, tokens repeat."""

import numpy as np
import pytest

from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import RealClock, SimulatedExecutor, VirtualClock
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import SampleInput, SamplingParams, StepInput

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


def answers(order: list[int], max_num_seqs: int = 8) -> dict[int, list[int]]:
    executor = SimulatedExecutor(vocab_size=100, num_slots=8, step_time_s=0.25)
    limits = EngineLimits(**{**{f: getattr(LIMITS, f) for f in LIMITS.__struct_fields__}, "max_num_seqs": max_num_seqs})
    engine = Engine(executor, limits, clock=executor.clock.now)
    names = {}
    for name in order:
        names[engine.submit(np.array([name, 5, 6]), SamplingParams(max_tokens=10, seed=name))[0]] = name
    tokens: dict[int, list[int]] = {name: [] for name in order}
    while engine.has_work:
        for event in engine.step():
            tokens[names[event.request_id]] += event.token_ids
    stats = engine.stats()
    assert stats.step_s == stats.model_s == 0.25 * stats.steps == executor.clock.now()
    return tokens


def test_tokens_depend_on_the_sequence_alone() -> None:
    alone = answers([1, 2, 3], max_num_seqs=1)
    assert answers([3, 1, 2]) == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 3 and all(len(t) == 10 for t in alone.values())


def step_of_one(position: int) -> tuple[StepInput, SampleInput]:
    one = np.array([position])
    step = StepInput(
        token_ids=np.array([7]),
        positions=one,
        ngram_ids=np.array([[7, 3]]),
        row_starts=np.array([0, 1]),
        state_slots=np.array([0]),
        block_tables=np.array([[0]]),
        sample_rows=np.array([0]),
    )
    return step, SampleInput(slots=np.array([0]), positions=one + 1)


def test_steps_follow_one_another_on_the_device() -> None:
    clock = VirtualClock()
    executor = SimulatedExecutor(vocab_size=10, num_slots=1, step_time_s=1.0, clock=clock)
    for position in (4, 5):
        step, _ = step_of_one(position)
        executor.submit(step)
    assert clock.now() == 0.0
    executor.sample(step_of_one(4)[1])
    executor.collect()
    assert clock.now() == 1.0
    clock.wait_until(1.5)  # the host is busy: the device works on
    executor.sample(step_of_one(5)[1])
    executor.collect()
    assert clock.now() == 2.0


def test_the_real_clock_waits() -> None:
    clock = RealClock()
    started_s = clock.now()
    clock.wait_until(started_s + 0.01)
    assert clock.now() >= started_s + 0.01
    clock.wait_until(started_s)  # the past needs no waiting


def test_results_come_in_order_only() -> None:
    executor = SimulatedExecutor(vocab_size=10, num_slots=1)
    with pytest.raises(IndexError):
        executor.collect()
