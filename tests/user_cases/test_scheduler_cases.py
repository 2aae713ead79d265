"""Reported scheduler faults as inputs: placeholders, late results, counters, pace of answers beside long prompts."""

import numpy as np
import pytest
from own_options import refused
from toy_executor import SomeDrafts, assert_empty, collect, expected_answer, run_all, toy_engine, toy_limits

from deepinfer.engine.sequences import DECODE
from deepinfer.interfaces import SamplingParams


def test_s01_no_placeholder_outlives_its_step() -> None:
    """Two answers with drafts; every other step drafts nothing, or checks none of what was drafted."""
    limits = toy_limits(draft_depth=3, async_depth=1, max_num_batched_tokens=30)
    engine = toy_engine(limits, SomeDrafts(seed=8))
    for seed in (1, 2):
        engine.submit(np.arange(1, 9), SamplingParams(max_tokens=40, seed=seed, ignore_eos=True))
    run_all(engine)
    assert {plan.draft for plan in engine.executor.plans} == {True, False}
    assert any(
        plan.num_drafts == 0 and before.draft for before, plan in zip(engine.executor.plans, engine.executor.plans[1:])
    )
    for step in engine.executor.steps:
        assert step.token_ids.min() >= 0
        inside = step.positions[:, None] >= np.arange(step.ngram_ids.shape[1])
        assert ((step.ngram_ids >= 0) == inside).all()


@pytest.mark.parametrize("depth", [0, 1, 3, 5])
@pytest.mark.parametrize("moment", [1, 2, 4])
def test_s02_a_late_result_of_a_preempted_request_is_discarded_in_full(depth: int, moment: int) -> None:
    limits = toy_limits(draft_depth=depth, async_depth=1, max_num_batched_tokens=60)
    engine = toy_engine(limits)
    params = [SamplingParams(max_tokens=24, seed=seed, ignore_eos=True) for seed in (1, 2)]
    ids = [engine.submit(np.arange(3, 12), one)[0] for one in params]
    tokens: dict[int, list[int]] = {}
    ends: dict = {}
    for step in range(200):
        if not engine.has_work:
            break
        collect(engine.step(), tokens, ends)
        slots = np.flatnonzero(engine.scheduler.table.request_id == ids[1])
        if step in (moment, moment + 1) and len(slots) and engine.scheduler.table.stage[slots[0]] == DECODE:
            assert engine._flying is not None, "its step is in flight"
            engine.scheduler.preempt(int(slots[0]))
    assert engine.stats().dropped_results >= 1 and engine.stats().preemptions >= 1
    for one, request_id in zip(params, ids):
        assert ends[request_id][0] == expected_answer(list(range(3, 12)), one.seed, one, limits)
    assert_empty(engine)


@pytest.mark.parametrize("depth", [0, 3])
def test_s03_what_is_in_flight_never_counts_below_zero(depth: int) -> None:
    """A prompt of three chunks beside eight answers, ahead of the device."""
    limits = toy_limits(
        draft_depth=depth, async_depth=1, max_num_seqs=9, max_prefill_tokens=8, max_num_batched_tokens=60
    )
    engine = toy_engine(limits)
    for seed in range(8):
        engine.submit(np.array([seed + 1, 2]), SamplingParams(max_tokens=30, seed=seed, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.submit(np.arange(1, 25), SamplingParams(max_tokens=5, seed=9, ignore_eos=True))
    while engine.has_work:
        engine.step()
        pending = engine.scheduler.table.pending
        assert pending.min() >= 0 and pending.max() <= 1
    assert engine.stats().steps_ahead > 0
    assert (engine.scheduler.table.pending == 0).all()


def test_s04_thirty_two_prompts_are_the_same_ahead_and_with_seven_drafts() -> None:
    def tokens(depth: int, ahead: int) -> list[list[int]]:
        limits = toy_limits(
            draft_depth=depth, async_depth=ahead, max_num_seqs=16, max_num_batched_tokens=200, num_blocks=90
        )
        engine = toy_engine(limits)
        rng = np.random.default_rng(4)
        params = SamplingParams(max_tokens=20, temperature=0.0, seed=3)
        ids = [engine.submit(rng.integers(1, 50, 4 + k), params)[0] for k in range(32)]
        ends = run_all(engine)
        return [ends[i][0] for i in ids]

    plain = tokens(0, 0)
    assert tokens(7, 1) == plain and tokens(7, 0) == plain and tokens(0, 1) == plain


def test_s05_pipeline_parallelism_is_no_key_that_could_be_wrong() -> None:
    text = refused("parallel.pipeline=2", "speculation=dspark", "scheduler.async_depth=0")
    assert "has no key 'pipeline'; it has attention_dp, context, expert" in text


def test_s06_a_long_prompt_slows_a_running_answer_by_a_bounded_share() -> None:
    """64 chunks beside an answer: every step gives the answer its token, and has at most so many prompt rows."""
    limits = toy_limits(max_model_len=600, num_blocks=300, max_prefill_tokens=8, max_num_batched_tokens=64)
    engine = toy_engine(limits)
    first = engine.submit(np.arange(1, 5), SamplingParams(max_tokens=90, seed=1, ignore_eos=True))[0]
    engine.step()
    engine.submit(np.arange(1, 513) % 50, SamplingParams(max_tokens=1, seed=2))
    beside = 0
    while first in engine.scheduler.request_ids():
        assert first in [event.request_id for event in engine.step()]
        rows = engine.executor.plans[-1].num_chunk_rows
        assert rows <= 8
        beside += rows > 0
    assert beside >= 64
