"""Steps for which memory does not suffice: everybody gets the same tokens, nothing leaks, who alone does not fit is told."""

from __future__ import annotations

import numpy as np
import pytest
from toy_executor import SomeDrafts, ToyExecutor, assert_empty, collect, expected_answer, run_all, toy_limits
from toy_prefix import ToyPrefixExecutor, toy_prefix_engine

from deepinfer.engine.device import StepOutOfMemory
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.seeds import sequence_key
from deepinfer.engine.step_loss import MOST_LOSSES, PATIENCE, RowLimit
from deepinfer.interfaces import SampleInput, SamplingParams, StepPlan

PLACES = ("before", "behind the rows", "before the tokens", "behind the tokens")


class Short:
    """A toy's memory: now and then a step of several rows is lost, at one of four places; of more than `most_rows` always."""

    chance, most_rows, banned = 0.0, 10**9, -1
    rng = np.random.default_rng(0)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.lost_at: list[str] = []
        self._place = ""

    def submit(self, plan: StepPlan) -> None:
        rows = plan.num_decode + plan.num_chunk_rows
        lost = rows > self.most_rows or (rows > 1 and self.rng.random() < self.chance)
        lost |= any(self.requests[slot].seed == self.banned for slot in plan.slots.tolist())
        self._place = PLACES[len(self.lost_at) % len(PLACES)] if lost else ""
        self._lose("before")
        super().submit(plan)
        self._lose("behind the rows")

    def sample(self, sample: SampleInput) -> None:
        self._lose("before the tokens")
        super().sample(sample)
        self._lose("behind the tokens")

    def _lose(self, place: str) -> None:
        if self._place == place:
            self.lost_at.append(place)
            self._flying.clear()
            if place == "behind the tokens":
                self._outputs.pop()
            raise StepOutOfMemory(f"planted {place}")


class ShortToy(Short, ToyExecutor):
    pass


class ShortPrefixToy(Short, ToyPrefixExecutor):
    pass


def engine_of(limits: EngineLimits, *, threaded: bool = False) -> tuple[Engine, ShortToy]:
    executor = ShortToy(limits)
    lengths = SomeDrafts() if limits.draft_depth else None
    outer = ThreadedExecutor(executor) if threaded else executor
    return Engine(outer, limits, lengths=lengths, seed_entropy=5, poison_freed=True), executor


def submit_some(engine: Engine, seed: int, count: int = 14) -> dict[int, list[int]]:
    rng, wanted = np.random.default_rng(seed), {}
    for _ in range(count):
        params = SamplingParams(max_tokens=int(rng.integers(1, 30)), seed=int(rng.integers(2**62)))
        prompt = rng.integers(0, engine.limits.vocab_size, rng.integers(1, 40))
        (request_id,) = engine.submit(prompt, params, priority=int(rng.integers(0, 2)))
        wanted[request_id] = expected_answer(prompt.tolist(), sequence_key(params.seed, 0), params, engine.limits)
    return wanted


HOW = [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize(("async_depth", "threaded"), HOW)
def test_who_has_a_slot_goes_on_before_somebody_of_higher_priority_who_has_none(
    async_depth: int, threaded: bool
) -> None:
    """All slots are held by sequences of a lost step."""
    engine, executor = engine_of(toy_limits(async_depth=async_depth, max_num_seqs=2), threaded=threaded)
    wanted, tokens, ends = submit_some(engine, 3, count=2), {}, {}
    while engine.scheduler.slots.num_free:
        collect(engine.step(), tokens, ends)
    params = SamplingParams(max_tokens=5, seed=1)
    (urgent,) = engine.submit(np.arange(1, 9), params, priority=9)
    wanted[urgent] = expected_answer(list(range(1, 9)), sequence_key(1, 0), params, engine.limits)
    executor.chance = 1.0
    while not executor.lost_at:
        collect(engine.step(), tokens, ends)
    executor.chance = 0.0
    while engine.has_work:
        collect(engine.step(), tokens, ends)
    assert tokens == wanted and engine.stats().finished["error"] == 0
    engine.close()


@pytest.mark.parametrize(("async_depth", "threaded"), HOW)
@pytest.mark.parametrize("draft_depth", [0, 3])
@pytest.mark.parametrize("chance", [0.05, 0.4])
def test_lost_steps_change_no_token(async_depth: int, threaded: bool, draft_depth: int, chance: float) -> None:
    engine, executor = engine_of(toy_limits(async_depth=async_depth, draft_depth=draft_depth), threaded=threaded)
    executor.chance, executor.rng = chance, np.random.default_rng(7)
    wanted = submit_some(engine, 3)
    assert {request_id: tokens for request_id, (tokens, _, _) in run_all(engine).items()} == wanted
    assert engine.stats().lost_steps == len(executor.lost_at) > 0
    if chance > 0.1:
        assert set(executor.lost_at) == set(PLACES)
    if not threaded:
        assert_empty(engine)
    engine.close()


@pytest.mark.parametrize(("async_depth", "threaded"), HOW)
@pytest.mark.parametrize("most_rows", [1, 5])
def test_steps_become_as_small_as_memory_wants(async_depth: int, threaded: bool, most_rows: int) -> None:
    engine, executor = engine_of(toy_limits(async_depth=async_depth), threaded=threaded)
    executor.most_rows = most_rows
    wanted = submit_some(engine, 4, count=6)
    ends = run_all(engine)
    assert {request_id: tokens for request_id, (tokens, _, _) in ends.items()} == wanted
    assert all(reason in ("stop", "length") for _, reason, _ in ends.values())
    assert engine.stats().preemptions > 0
    engine.close()


@pytest.mark.parametrize(("async_depth", "threaded"), HOW)
def test_a_request_that_alone_does_not_fit_is_told_so_and_the_others_are_served(
    async_depth: int, threaded: bool
) -> None:
    engine, executor = engine_of(toy_limits(async_depth=async_depth), threaded=threaded)
    wanted = submit_some(engine, 5, count=5)
    executor.banned = sequence_key(99, 0)
    (banned,) = engine.submit(np.arange(1, 9), SamplingParams(max_tokens=9, seed=99))
    wanted |= submit_some(engine, 6, count=5)
    ends = run_all(engine)
    tokens, reason, error = ends.pop(banned)
    assert (tokens, reason) == ([], "error") and error is not None
    for part in ("a step of one row, alone", "at 8 tokens", "planted", "type: cache.num_blocks="):
        assert part in error
    assert {request_id: tokens for request_id, (tokens, _, _) in ends.items()} == wanted
    assert engine.stats().finished["error"] == 1
    engine.close()


@pytest.mark.parametrize("on_hit", ["snapshot", "exact"])
@pytest.mark.parametrize("async_depth", [0, 1])
def test_a_lost_step_publishes_nothing_and_keeps_no_snapshot(on_hit: str, async_depth: int) -> None:
    limits = toy_limits(async_depth=async_depth, num_blocks=60)
    engine = toy_prefix_engine(limits, on_hit=on_hit)
    executor = ShortPrefixToy(limits, 16)
    engine.executor = executor
    engine.scheduler._on_freed = executor.poison
    executor.chance, executor.rng = 0.2, np.random.default_rng(8)
    rng, starts = np.random.default_rng(2), [np.random.default_rng(s).integers(0, 50, 24) for s in (1, 2)]
    wanted, tokens, ends = {}, {}, {}
    for turn in range(40):
        prompt = np.concatenate([starts[turn % 2][: rng.integers(8, 24)], rng.integers(0, 50, rng.integers(1, 6))])
        params = SamplingParams(max_tokens=int(rng.integers(1, 12)), seed=turn)
        (request_id,) = engine.submit(prompt, params)
        wanted[request_id] = expected_answer(prompt.tolist(), sequence_key(turn, 0), params, limits)
        for _ in range(3):
            collect(engine.step(), tokens, ends)
    while engine.has_work:
        collect(engine.step(), tokens, ends)
    assert {request_id: found for request_id, (found, _, _) in ends.items()} == wanted
    stats = engine.stats()
    assert stats.lost_steps > 5 and stats.prefix is not None and stats.prefix.hits > 5
    snapshots = engine.scheduler.prefix.cache.snapshots
    if snapshots.size:
        assert snapshots.num_kept + snapshots.num_unused == snapshots.size, "none is reserved or pinned for ever"
    assert_empty(engine)


def test_a_row_limit_shrinks_at_once_and_is_lifted_slowly() -> None:
    rows = RowLimit(64)

    def go_well(times: int) -> int:
        for _ in range(times):
            rows.went_well([])
        return rows.now

    rows.shrink(40, [1, 2])
    assert go_well(PATIENCE - 1) == 20 and go_well(1) == 40
    rows.shrink(40, [1, 2])
    assert go_well(2 * PATIENCE - 1) == 20, "that was too soon: twice the patience"
    assert go_well(1) == 40
    for _ in range(4):
        rows.shrink(10**6, [1, 2])
    assert rows.now == 2
    for _ in range(20):
        rows.shrink(1, [1, 2])
    assert rows.now == 1 and go_well(1000) == 64


def test_a_lost_step_of_answers_alone_leaves_prompts_their_rows() -> None:
    rows = RowLimit(64)
    rows.shrink(8, range(8), chunks=False)
    assert rows.now == 64 and rows.may_join(9, [1, 2, 3]) and not rows.may_join(9, [1, 2, 3, 4])
    rows.shrink(6, [1], chunks=False)
    assert rows.now == 3, "the drafts of one answer"
    for _ in range(1000):
        rows.went_well([])
    assert rows.now == 64 and rows.may_join(9, list(range(60)))


def test_who_was_in_several_lost_steps_runs_alone_until_its_next_token() -> None:
    rows = RowLimit(64)
    for _ in range(MOST_LOSSES):
        assert rows.may_join(1, [2]) and rows.may_join(2, [1])
        rows.shrink(64, [1, 3])
    assert not rows.may_join(1, [2]) and not rows.may_join(2, [1]) and rows.may_join(1, [])
    rows.shrink(9, [1])
    for _ in range(1000):
        rows.went_well([2])
    assert rows.now == 64 and rows.rows_of(1) == 4 and rows.rows_of(2) == 64, "a limit of its own is not lifted"
    rows.went_well([1])
    assert rows.may_join(1, [2]) and rows.rows_of(1) == 64 and not rows.may_join(3, [2])
    rows.lift()
    rows.forget(3)
    assert rows.may_join(3, [2])


def test_no_more_run_than_a_step_has_rows() -> None:
    engine, executor = engine_of(toy_limits())
    engine.scheduler.rows.shrink(8, [])
    submit_some(engine, 9, count=12)
    for _ in range(6):
        engine.step()
        assert engine.scheduler.num_decoding + engine.scheduler.num_prefilling <= 4
        assert executor.steps[-1].num_rows <= 4
    run_all(engine)
    engine.close()
