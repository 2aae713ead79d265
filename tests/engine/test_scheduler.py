"""The scheduler's rules: bounds on steps, order of admission, victims, late results, the watchdog."""

import numpy as np
import pytest
from toy_executor import assert_empty, expected_answer, run_all, toy_engine, toy_limits

from deepinfer.engine.engine import Engine
from deepinfer.engine.sequences import DECODE, PREEMPTED, PREFILL
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.engine.watchdog import MAX_EMPTY_STEPS, EngineStalled, Watchdog
from deepinfer.interfaces import SampleInput, SamplingParams, StepOutput


def execute(engine: Engine, scheduled: ScheduledStep) -> StepOutput:
    engine._submit(scheduled)
    engine.executor.sample(SampleInput())
    return engine.executor.collect()


def commit(engine: Engine, scheduled: ScheduledStep, output: StepOutput) -> list:
    return engine._tell(scheduled, output, engine.scheduler.commit(scheduled, output))


def submit(engine: Engine, length: int, *, max_tokens: int = 20, priority: int = 0, token: int = 1) -> int:
    params = SamplingParams(max_tokens=max_tokens, seed=token, ignore_eos=True)
    return engine.submit(np.full(length, token), params, priority=priority)[0]


def stages(engine: Engine) -> dict[int, int]:
    table = engine.scheduler.table
    return {int(i): int(stage) for i, stage in zip(table.request_id, table.stage) if i >= 0}


def test_prompts_delay_a_running_answer_by_a_bounded_number_of_rows() -> None:
    engine = toy_engine(toy_limits(max_prefill_tokens=8, max_num_batched_tokens=24))
    first = submit(engine, 2, max_tokens=25)
    engine.step()
    for _ in range(3):
        submit(engine, 30)
    prefill_steps = 0
    while first in stages(engine):
        assert first in [event.request_id for event in engine.step()], "a step without a token of the running answer"
        step = engine.executor.steps[-1]
        num_prefill = int((np.diff(step.row_starts)[1:] * (step.positions[step.row_starts[1:-1]] < 30)).sum())
        assert num_prefill <= 8 and step.num_rows <= 24
        prefill_steps += num_prefill > 0
    assert prefill_steps >= 90 // 8


def test_a_step_never_has_more_rows_than_its_budget() -> None:
    engine = toy_engine(toy_limits(max_prefill_tokens=64, max_num_batched_tokens=12))
    for token in range(1, 7):
        submit(engine, 20, token=token)
    run_all(engine)
    assert max(step.num_rows for step in engine.executor.steps) == 12


def test_prompts_alone_fill_the_whole_step() -> None:
    engine = toy_engine(toy_limits(max_prefill_tokens=8, max_num_batched_tokens=24))
    submit(engine, 40)
    engine.step()
    assert engine.executor.steps[0].num_rows == 24


def test_admission_keeps_the_order_and_never_passes_one_that_does_not_fit() -> None:
    engine = toy_engine(toy_limits(num_blocks=10, max_num_batched_tokens=64, max_prefill_tokens=64))
    big, bigger, small = submit(engine, 20, max_tokens=5), submit(engine, 24, max_tokens=5), submit(engine, 1)
    engine.step()
    assert set(stages(engine)) == {big}, "the small one could run but has to wait for its turn"
    assert list(run_all(engine)) == [big, bigger, small]


def test_priority_goes_first() -> None:
    engine = toy_engine(toy_limits(max_num_seqs=1))
    order = [submit(engine, 2, priority=p, max_tokens=2) for p in (0, 0, 5, -1, 5)]
    assert list(run_all(engine)) == [order[2], order[4], order[0], order[1], order[3]]


def test_the_victim_has_the_lowest_priority_and_is_the_newest_of_those() -> None:
    engine = toy_engine(toy_limits(num_blocks=16, max_num_seqs=5))
    ids = [submit(engine, 4, max_tokens=40, priority=p, token=n + 1) for n, p in enumerate((0, 1, 0, 1))]
    victims = []
    while engine.has_work:
        engine.step()
        victims += [i for i, stage in stages(engine).items() if stage == PREEMPTED and i not in victims]
    assert victims[:2] == [ids[2], ids[0]] and ids[1] not in victims


def test_a_partly_prefilled_prompt_can_be_a_victim() -> None:
    limits = toy_limits(num_blocks=16, max_prefill_tokens=1)
    engine = toy_engine(limits)
    first = submit(engine, 7, max_tokens=50)
    engine.step()
    second = submit(engine, 40, token=2)
    seen = set()
    while first in stages(engine) or not seen:
        engine.step()
        seen.add(stages(engine).get(second))
    assert {PREFILL, PREEMPTED} <= seen and DECODE not in seen
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    assert run_all(engine)[second][0] == expected_answer([2] * 40, 2, params, limits)


def test_newcomers_leave_blocks_that_running_answers_need_next() -> None:
    engine = toy_engine(toy_limits(num_blocks=3))
    first = submit(engine, 4, max_tokens=5)
    engine.step()
    second = submit(engine, 4, max_tokens=5)
    engine.step()
    assert set(stages(engine)) == {first}
    assert set(run_all(engine)) == {first, second}
    assert engine.stats().preemptions == 0


def test_many_answers_may_need_a_block_in_the_same_step() -> None:
    limits = toy_limits(max_num_seqs=6, num_blocks=6 * 16)
    engine = toy_engine(limits)
    ids = [submit(engine, 4, max_tokens=9, token=n) for n in range(6)]
    ends = run_all(engine)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    assert [ends[i][0] for i in ids] == [expected_answer([n] * 4, n, params, limits) for n in range(6)]


@pytest.mark.parametrize("moment", [0, 1, 3, 5])
@pytest.mark.parametrize("times", [1, 2])
def test_the_result_of_a_step_is_dropped_when_its_sequence_was_preempted_meanwhile(moment: int, times: int) -> None:
    limits = toy_limits()
    engine = toy_engine(limits)
    first, second = submit(engine, 6, max_tokens=12, token=1), submit(engine, 6, max_tokens=12, token=2)
    events = [event for _ in range(moment + 1) for event in engine.step()]
    for _ in range(times):
        scheduled = engine.scheduler.schedule()
        output = execute(engine, scheduled)
        for slot in scheduled.plan.slots.tolist():
            if engine.scheduler.table.request_id[slot] == second:
                engine.scheduler.preempt(slot)
        late = commit(engine, scheduled, output)
        assert second not in [event.request_id for event in late]
        events += late
    tokens = {first: [], second: []}
    while engine.has_work:
        events += engine.step()
    for event in events:
        tokens[event.request_id] += event.token_ids
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    for token, request_id in ((1, first), (2, second)):
        assert tokens[request_id] == expected_answer([token] * 6, token, params, limits)
    assert_empty(engine)


def test_the_result_of_a_step_is_dropped_when_its_slot_has_a_new_owner() -> None:
    limits = toy_limits(max_num_seqs=1)
    engine = toy_engine(limits)
    first, second = submit(engine, 6, token=1), submit(engine, 6, token=2, max_tokens=7)
    engine.step()
    scheduled = engine.scheduler.schedule()
    output = execute(engine, scheduled)
    engine.abort(first)
    newer = engine.scheduler.schedule()
    assert newer.plan.slots.tolist() == scheduled.plan.slots.tolist()
    assert commit(engine, scheduled, output) == []
    tokens = [t for e in commit(engine, newer, execute(engine, newer)) for t in e.token_ids]
    while engine.has_work:
        tokens += [t for e in engine.step() if e.request_id == second for t in e.token_ids]
    assert tokens == expected_answer([2] * 6, 2, SamplingParams(max_tokens=7, ignore_eos=True), limits)


def test_no_negative_id_ever_leaves_the_scheduler() -> None:
    engine = toy_engine(toy_limits(num_blocks=16))
    for token in range(6):
        submit(engine, 1 + 3 * token, token=token)
    run_all(engine)
    for step in engine.executor.steps:
        assert step.token_ids.min() >= 0 and step.positions.min() >= 0 and step.state_slots.min() >= 0
        inside = step.positions[:, None] >= np.arange(3)
        assert ((step.ngram_ids >= 0) == inside).all(), "n-grams are -1 before the sequence and nowhere else"
        owned = step.block_tables >= 0
        assert (np.diff(owned.astype(int), axis=1) <= 0).all(), "unused entries follow the used ones"
        in_use = step.block_tables[owned]
        assert len(set(in_use.tolist())) == len(in_use), "a block with two owners"


def test_the_watchdog_ends_a_scheduler_that_finds_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    submit(engine, 3)
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: None)
    for _ in range(MAX_EMPTY_STEPS):
        engine.step()
    with pytest.raises(
        EngineStalled, match="nothing to run while requests wait: 1 waiting, 0 in prefill, 0 answering; 40 of 40"
    ):
        engine.step()


def test_the_watchdog_ends_work_that_goes_in_a_circle() -> None:
    limits, now = toy_limits(watchdog_s=5.0), [0.0]
    engine = Engine(toy_engine(limits).executor, limits, poison_freed=True, clock=lambda: now[0])
    submit(engine, 30)
    with pytest.raises(EngineStalled, match=r"no token in \d+ steps and \d+\.\d s: 0 waiting, 1 in prefill"):
        for _ in range(200):
            now[0] += 1.0
            engine.step()
            engine.scheduler.preempt(engine.scheduler._prefilling[0])
    assert engine.stats().recomputed_tokens > 0


def test_the_watchdog_waits_for_both_many_steps_and_much_time() -> None:
    now = [100.0]
    watchdog = Watchdog(longest_prefill_steps=3, limit_s=5.0, clock=lambda: now[0])
    for _ in range(1000):
        watchdog.no_token(rows=1, state="quick")  # many steps, no time
    now[0] = 105.0
    watchdog.no_token(rows=1, state="just in time")
    watchdog.progress()
    now[0] = 1000.0
    for _ in range(3 + MAX_EMPTY_STEPS):
        watchdog.no_token(rows=1, state="slow")  # much time, few steps
    with pytest.raises(EngineStalled, match=r"no token in 12 steps and 895\.0 s: slow"):
        watchdog.no_token(rows=1, state="slow")
    off = Watchdog(longest_prefill_steps=0, limit_s=0.0, clock=lambda: now[0])
    for _ in range(100):
        off.no_token(rows=0, state="nobody looks")


def test_rows_in_between_excuse_empty_steps() -> None:
    watchdog = Watchdog(longest_prefill_steps=1000, limit_s=5.0, clock=lambda: 0.0)
    for _ in range(5):
        for _ in range(MAX_EMPTY_STEPS):
            watchdog.no_token(rows=0, state="")
        watchdog.no_token(rows=1, state="")


def test_the_watchdog_lets_long_prompts_be() -> None:
    """Three prompts in single rows, one after another: more steps without a token than one prompt may take."""
    limits = toy_limits(max_prefill_tokens=1, max_num_batched_tokens=1, max_num_seqs=1, watchdog_s=0.5)
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    engine = Engine(toy_engine(limits).executor, limits, clock=clock)
    ids = [submit(engine, 60, max_tokens=2, token=token) for token in (1, 2, 3)]
    ends = run_all(engine)
    assert [ends[i][1] for i in ids] == ["length"] * 3
    assert engine.stats().steps > limits.max_model_len + 2 * MAX_EMPTY_STEPS
