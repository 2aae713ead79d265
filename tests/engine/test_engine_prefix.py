"""Prefix cache on = off, token for token, on the toy model that reads its history back through blocks, rings and tails."""

from collections.abc import Callable

import numpy as np
import pytest
from toy_executor import assert_empty, expected_answer, run_all, toy_engine, toy_limits
from toy_prefix import toy_prefix_engine

from deepinfer.cache.cached_blocks import CachedBlocks
from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.replay import Replay
from deepinfer.engine.booking import Committed
from deepinfer.engine.engine import Engine
from deepinfer.engine.prefix_admission import PrefixAdmission
from deepinfer.engine.seeds import sequence_key
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.interfaces import SamplingParams

PARAMS = SamplingParams(max_tokens=6, seed=7, ignore_eos=True)


def families(rng: np.random.Generator, vocab_size: int, count: int) -> list[list[int]]:
    """Prompts that continue each other, share beginnings of any length, or are the same."""
    prompts = [rng.integers(0, vocab_size, rng.integers(1, 40)).tolist() for _ in range(3)]
    while len(prompts) < count:
        base = prompts[rng.integers(len(prompts))]
        kept = base[: rng.integers(0, len(base) + 1)]
        prompts.append((kept + rng.integers(0, vocab_size, rng.integers(1, 12)).tolist())[:44])
    return [prompts[i] for i in rng.permutation(count)]


@pytest.mark.sample(60)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_blocks", [16, 24, 60, 200])
@pytest.mark.parametrize("async_depth", [0, 1])
@pytest.mark.parametrize("draft_depth", [0, 1, 4])
@pytest.mark.parametrize("on_hit", ["snapshot", "exact"])
def test_any_schedule_with_the_cache_gives_the_tokens_of_a_lone_run(
    seed: int, num_blocks: int, async_depth: int, draft_depth: int, on_hit: str
) -> None:
    check_random_traffic(seed, num_blocks, async_depth, draft_depth, on_hit)


def check_random_traffic(seed: int, num_blocks: int, async_depth: int, draft_depth: int, on_hit: str) -> Engine:
    rng = np.random.default_rng([seed, num_blocks, draft_depth])
    limits = toy_limits(
        num_blocks=num_blocks,
        async_depth=async_depth,
        draft_depth=draft_depth,
        max_num_seqs=int(rng.integers(1, 9)),
        max_num_batched_tokens=int(rng.integers(9, 70)),
        max_prefill_tokens=int(rng.integers(1, 70)),
    )
    engine = toy_prefix_engine(limits, on_hit=on_hit, num_snapshots=int(rng.integers(1, 20)))
    wanted, aborted = {}, set()
    for prompt in families(rng, limits.vocab_size, 20):
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 20)), seed=int(rng.integers(2**62)), n=int(rng.integers(1, 3))
        )
        ids = engine.submit(np.array(prompt), params, priority=int(rng.integers(-1, 2)))
        for n_index, request_id in enumerate(ids):
            wanted[request_id] = expected_answer(prompt, sequence_key(params.seed, n_index), params, limits)
        for _ in range(rng.integers(0, 12)):
            for event in engine.step():
                wanted[event.request_id] = wanted[event.request_id][len(event.token_ids) :]
        if rng.integers(4) == 0 and engine.abort(ids[0]):
            aborted.add(ids[0])
    ends = run_all(engine)
    assert {i: t for i, (t, _, _) in ends.items() if i not in aborted} == {
        i: w for i, w in wanted.items() if i in ends and i not in aborted
    }
    assert_empty(engine)
    stats, cache = engine.stats().prefix, engine.scheduler.prefix.cache
    assert stats.queries == engine.stats().admitted
    assert stats.idle_blocks == stats.cached_blocks == cache.index.num_cached
    assert (cache.snapshots._pins == 0).all()
    assert cache.snapshots.num_unused + cache.snapshots.num_kept == cache.snapshots.size
    assert not cache._sequences and not engine.scheduler.prefix.news
    return engine


def test_random_traffic_does_all_that_it_is_to_check() -> None:
    """Hits, restores, evictions, preemptions, and snapshots at ends of blocks that answers crossed, reached and not."""
    engines = [check_random_traffic(seed, 16, 1, 4, "snapshot") for seed in range(6)]
    assert all(engine.executor.num_poisoned_snapshots > 5 for engine in engines)
    stats = [engine.stats() for engine in engines]
    assert sum(s.prefix.hits for s in stats) > 10
    assert sum(s.preemptions for s in stats) > 2
    assert sum(s.prefix.evicted_blocks for s in stats) > 100
    assert sum(s.dropped_results for s in stats) > 2


def no_restore(patch: pytest.MonkeyPatch) -> None:
    """The window of a hit is whatever the slot had."""
    plan = PrefixAdmission.plan

    def forgetful(self: PrefixAdmission, scheduled: ScheduledStep) -> None:
        plan(self, scheduled)
        if len(scheduled.plan.restores):
            self.cache.unpin(scheduled.plan.restores[:, 1])
            scheduled.plan.restores = scheduled.plan.restores[:0]

    patch.setattr(PrefixAdmission, "plan", forgetful)


def snapshots_kept_unreached(patch: pytest.MonkeyPatch) -> None:
    """A boundary that rejected drafts crossed counts as reached."""
    settle = PrefixAdmission.settle

    def hasty(self: PrefixAdmission, scheduled: ScheduledStep, committed: Committed) -> None:
        depth = scheduled.plan.num_decode and self._limits.draft_depth
        committed.counts = committed.counts + depth
        self._table.num_computed[committed.slots] += depth
        settle(self, scheduled, committed)
        self._table.num_computed[committed.slots] -= depth
        committed.counts = committed.counts - depth

    patch.setattr(PrefixAdmission, "settle", hasty)


def evicted_blocks_are_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "_evicted", lambda self, blocks: self.on_evicted(blocks))


def the_last_token_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replay, "longest_hit", lambda self, num_prompt: num_prompt)


def shared_blocks_are_written(patch: pytest.MonkeyPatch) -> None:
    """Blocks of a hit that nobody holds on to."""
    patch.setattr(CachedBlocks, "share", lambda self, ids: None)


@pytest.mark.parametrize(
    "plant",
    [
        no_restore,
        snapshots_kept_unreached,
        evicted_blocks_are_found,
        the_last_token_is_not_computed,
        shared_blocks_are_written,
    ],
)
def test_a_planted_fault_is_caught(plant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - another token, or one of our invariants
        for seed in range(8):
            check_random_traffic(seed, 16, 1, 4, "snapshot")


@pytest.mark.parametrize("async_depth", [0, 1])
@pytest.mark.parametrize("draft_depth", [0, 3])
@pytest.mark.parametrize("on_hit", ["snapshot", "exact"])
def test_a_conversation_hits_more_and_more(async_depth: int, draft_depth: int, on_hit: str) -> None:
    """Every turn's prompt is all that was said before: the answer's own blocks are found again."""
    limits = toy_limits(async_depth=async_depth, draft_depth=draft_depth, max_model_len=128)
    engine, said, hits = toy_prefix_engine(limits, on_hit=on_hit), [1, 2, 3, 4, 5, 6, 7], []
    for turn in range(6):
        params = SamplingParams(max_tokens=9, seed=turn, ignore_eos=True)
        request_id = engine.submit(np.array(said), params)[0]
        cached = None
        tokens: list[int] = []
        while engine.unfinished or engine.has_work:
            for event in engine.step():
                tokens += event.token_ids
                cached = event.cached_tokens if event.cached_tokens is not None else cached
        assert tokens == expected_answer(said, turn, params, limits), request_id
        hits.append(cached)
        said += [*tokens, turn]
    size = limits.block_tokens
    lost = 0 if on_hit == "snapshot" else 3  # rows that rebuild the window
    assert hits == [0, *((7 + 10 * turn - 2) // size * size - lost for turn in range(1, 6))]


def test_a_preempted_sequence_finds_its_own_blocks_and_counts_after_the_match() -> None:
    limits = toy_limits(num_blocks=16, max_num_seqs=6)
    prompts = [[i + 1] * 9 for i in range(6)]
    params = SamplingParams(max_tokens=40, seed=11, ignore_eos=True)
    recomputed = []
    for engine in (toy_prefix_engine(limits, num_snapshots=30), toy_engine(limits)):
        ids = [engine.submit(np.array(p), params)[0] for p in prompts]
        ends = run_all(engine)
        assert [ends[i][0] for i in ids] == [expected_answer(p, 11, params, limits) for p in prompts]
        assert engine.stats().preemptions > 5
        recomputed.append(engine.stats().recomputed_tokens)
        assert_empty(engine)
    assert 0 < recomputed[0] < 0.6 * recomputed[1]


def test_a_pool_of_four_blocks_preempts_and_resumes() -> None:
    """User case S07."""
    limits = toy_limits(num_blocks=4, max_model_len=16, max_num_seqs=2)
    engine = toy_prefix_engine(limits, num_snapshots=4)
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]]
    params = SamplingParams(max_tokens=10, seed=3, ignore_eos=True)
    ids = [engine.submit(np.array(p), params)[0] for p in prompts]
    ends = run_all(engine)
    assert [ends[i][0] for i in ids] == [expected_answer(p, 3, params, limits) for p in prompts]
    assert engine.stats().preemptions > 0
    assert_empty(engine)


@pytest.mark.parametrize("shared", [1, 2, 3, 4, 5, 7, 8, 9])
def test_prompts_that_share_about_a_block_beside_one_that_shares_none(shared: int) -> None:
    """User case K04, at the toy's block of four."""
    limits = toy_limits()
    engine = toy_prefix_engine(limits, snapshot_every=1)
    first, stranger = list(range(1, 14)), [40] * 13
    second = [*first[:shared], *([30] * (13 - shared))]
    for prompt in (first, second, stranger):
        engine.submit(np.array(prompt), PARAMS)
        run_all(engine)
    ids = {engine.submit(np.array(p), PARAMS)[0]: p for p in (first, second, stranger)}
    ends = run_all(engine)
    assert {i: ends[i][0] for i in ids} == {i: expected_answer(p, 7, PARAMS, limits) for i, p in ids.items()}
    assert engine.stats().prefix.hits == 3 + (shared >= limits.block_tokens)


def test_prompt_logprobs_are_whole_on_a_warm_cache() -> None:
    limits, prompt = toy_limits(), np.arange(1, 20)
    engine = toy_prefix_engine(limits)
    engine.submit(prompt, PARAMS)
    run_all(engine)
    asked = SamplingParams(max_tokens=2, seed=7, prompt_logprobs=0)
    engine.submit(prompt, asked)
    rows = []
    while engine.has_work:
        for event in engine.step():
            rows += event.prompt_logprobs or []
            assert event.cached_tokens in (0, None)
    assert [int(row.token_ids[0]) for row in rows] == prompt[1:].tolist()


def test_salts_are_kept_apart() -> None:
    limits, prompt = toy_limits(), np.arange(1, 20)
    engine = toy_prefix_engine(limits)
    for salt in ("a", "b", "a"):
        engine.submit(prompt, PARAMS, cache_salt=salt)
        run_all(engine)
    assert (engine.stats().prefix.hits, engine.stats().prefix.queries) == (1, 3)


def test_a_sequence_that_fails_leaves_nothing_for_others() -> None:
    limits, prompt = toy_limits(), np.arange(1, 20)
    engine = toy_prefix_engine(limits)
    engine.executor.fail_at[sequence_key(7, 0)] = 22
    ends = run_all(engine) if engine.submit(prompt, PARAMS) else {}
    assert next(iter(ends.values()))[1] == "error"
    assert engine.stats().prefix.cached_blocks == 0
    assert_empty(engine)


@pytest.mark.parametrize("async_depth", [0, 1])
def test_a_hit_that_is_not_exact_is_told(async_depth: int) -> None:
    limits, prompt = toy_limits(async_depth=async_depth), np.arange(1, 20)
    engine = toy_prefix_engine(limits, on_hit="bounded")
    told = []
    for _ in range(2):
        engine.submit(prompt, PARAMS)
        while engine.has_work:
            told += [(e.cached_tokens, e.approximate) for e in engine.step() if e.cached_tokens is not None]
    assert told == [(0, False), (12, True)]


def test_replayed_rows_leave_shared_blocks_alone() -> None:
    limits, prompt = toy_limits(), np.arange(1, 20)
    engine = toy_prefix_engine(limits, on_hit="exact")
    for _ in range(2):
        engine.submit(prompt, PARAMS)
        ends = run_all(engine)
    assert next(iter(ends.values()))[0] == expected_answer(prompt.tolist(), 7, PARAMS, limits)
    assert engine.executor.rewritten == 3
