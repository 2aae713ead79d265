"""Steps divided among context ranks: hidden states, features and every byte of the caches are those of one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import Engine, golden_model, k6_model, make_step, random_tokens
from spread_models import Spread
from step_worlds import StepWorld
from thread_peers import Board, ThreadPeers, run_ranks

from deepinfer.ops import Ops, native, reference
from deepinfer.parallel.context import ContextDivision, attention_work, owners, zigzag

NATIVE, EXACT, ROUNDED = (native, "full", "float32"), (reference, "none", "float64"), (reference, "kv", "float32")
CASES = [
    pytest.param(2, "none", *NATIVE, id="2-none-native"),
    pytest.param(4, "compact", *NATIVE, id="4-compact-native"),
    pytest.param(3, "mask", *NATIVE, id="3-mask-native", marks=pytest.mark.slow),
    pytest.param(4, "none", *EXACT, id="4-none-float64", marks=pytest.mark.slow),
    pytest.param(2, "compact", *EXACT, id="2-compact-float64", marks=pytest.mark.slow),
    pytest.param(3, "compact", *ROUNDED, id="3-compact-rounded", marks=pytest.mark.slow),
    pytest.param(4, "mask", *ROUNDED, id="4-mask-rounded", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "replay", "ops", "numerics", "dtype"), CASES)
def test_divided_steps_give_the_bits_of_one_rank(
    size: int, replay: str, ops: Callable[[], Ops], numerics: str, dtype: str
) -> None:
    def engine() -> Engine:
        return golden_model().engine(ops(), numerics, dtype, backtrack=6, compact=replay == "compact", num_snapshots=4)

    alone = engine()
    world = StepWorld(size, alone, replay=replay != "none")
    steps, wanted = [world.step() for _ in range(12)], []
    for step in steps:
        hidden, features = alone.model.forward_with_features(step, alone.cache)
        wanted.append((hidden, features, alone.cache.blocks.clone(), alone.cache.state.clone()))

    def rank(peers: ThreadPeers) -> int:
        mine, divided = engine(), 0
        mine.model.division = division = ContextDivision(peers, least_rows=8)
        for step, (hidden, features, blocks, state) in zip(steps, wanted):
            got = mine.model.forward_with_features(step, mine.cache)
            assert torch.equal(got[0], hidden) and torch.equal(got[1], features)
            assert torch.equal(mine.cache.blocks, blocks) and torch.equal(mine.cache.state, state)
            divided += division.divide(step) is not None
        return divided

    assert min(run_ranks(size, rank)) >= 3


@pytest.mark.parametrize("kept", [0, 2])
def test_fewer_rows_go_on_than_there_are_ranks_and_experts_lie_on_all_of_them(kept: int) -> None:
    """Ranks without rows of their own in the upper layers keep up with the others' caches, and serve experts and tables."""
    small, spread, size, length = k6_model(), Spread(native(), compact=True), 4, 120
    tokens = random_tokens(small.config, length + 30, 3)

    def answer(engine: Engine) -> tuple[torch.Tensor, ...]:
        first = engine.step((tokens, 0, length, 1), upper_from=[length - kept])
        floors = [length - kept, 0]
        after = engine.step((tokens, length, length + 29, 1), (tokens, 0, 1, 2), upper_from=floors)
        last = engine.step((tokens, length + 29, length + 30, 1), (tokens, 1, 2, 2), upper_from=floors)  # on all alike
        seen = engine.visible(1, length + 30, window_from=length - kept).values()
        return first, after, last, *seen

    wanted = answer(small.engine(spread.ops, spread.numerics, spread.dtype, compact=True))
    context = Board(size)

    def rank(peers: ThreadPeers) -> None:
        engine = spread.engine(small, peers, spread.dispatch(small, peers))
        engine.model.division = ContextDivision(ThreadPeers(context, peers.rank), least_rows=9)
        assert all(torch.equal(one, other) for one, other in zip(answer(engine), wanted, strict=True))

    run_ranks(size, rank)


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize(("start", "length"), [(0, 65_536), (0, 4099), (16_384, 8192)])
def test_a_long_prompt_costs_all_ranks_the_same(size: int, start: int, length: int) -> None:
    owner_T = zigzag(length, size)
    rows, work = np.bincount(owner_T), attention_work(np.arange(start, start + length), owner_T, size)
    assert rows.sum() == length and rows.max() - rows.min() <= 1
    assert work.max() <= 1.02 * work.mean()
    assert np.count_nonzero(np.diff(owner_T)) == 2 * size - 2, "two pieces a rank, and those in the middle touch"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_that_go_on_are_divided_evenly_too(size: int) -> None:
    """Two chunks that are cut, one that is not, and answers."""
    tokens = random_tokens(golden_model().config, 400, 1)
    ends = [(0, 301), (5, 6), (100, 250), (9, 10), (17, 18), (0, 90), (30, 34)]
    upper = np.array([280, 0, 201, 0, 0, 0, 0])
    step = replace(make_step([(tokens, *end, s, [0]) for s, end in enumerate(ends)]), upper_from=upper)
    lengths_S = np.diff(step.row_starts)
    owner_T = owners(step, lengths_S >= 32, size)
    assert np.ptp(np.bincount(owner_T)) <= 1
    sequence_T = np.repeat(np.arange(len(ends)), lengths_S)
    for sequence, first in ((0, 280), (2, 201)):
        kept = (sequence_T == sequence) & (step.positions >= first)
        assert np.ptp(np.bincount(owner_T[kept], minlength=size)) <= 1


def test_steps_without_long_runs_are_not_divided() -> None:
    def rank(peers: ThreadPeers) -> None:
        tokens = random_tokens(golden_model().config, 64, 1)
        division = ContextDivision(peers)
        verify = [(tokens, 20, 26, s, [0]) for s in range(6)]
        assert division.divide(make_step(verify)) is None
        shares = division.divide(make_step([*verify, (tokens, 0, 40, 7, [0])]))
        assert shares is not None and len(shares.here) == 38

    run_ranks(2, rank)
    assert ContextDivision(ThreadPeers(Board(1), 0)).divide(make_step([([5] * 64, 0, 64, 0, [0])])) is None
