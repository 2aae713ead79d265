"""Fused models whose experts lie on several ranks against the same models on one: to the bit, and without waiting."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from fused_models import NoWaiting, row_by_row, watched
from small_models import random_tokens
from spread_fused import CONFIG, EXPERTS, LAYERS, FusedSpread, Rank, run
from thread_peers import Board, ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.model.fused.rehearsal import rehearsal
from deepinfer.parallel.placement import Placement

TEXTS = [random_tokens(CONFIG, 30, seed) for seed in range(3)]
# Of each rank, step by step: chunks, single rows, both, and steps in which it has nothing.
STEPS = [
    [[(0, 0, 21), (1, 0, 3)], [(0, 21, 22), (1, 3, 9)], [(1, 9, 10)]],
    [[], [(2, 0, 26)], [(2, 26, 27)]],
    [[(1, 0, 1)], [], [(1, 1, 2), (0, 0, 10)]],
    [[], [], [(0, 0, 2)]],
]


def spread_hidden(spread: FusedSpread, size: int) -> list[list[Tensor]]:
    return run_ranks(size, lambda peers: run(Rank.of(spread, peers), TEXTS, STEPS[peers.rank]))


def alone_hidden(spread: FusedSpread, size: int) -> list[list[Tensor]]:
    return [_alone(spread.dtype, spread.skewed, rank) for rank in range(size)]


@lru_cache(maxsize=16)
def _alone(dtype: str, skewed: tuple[int, ...], rank: int) -> list[Tensor]:
    one = Rank(FusedSpread(dtype, skewed=skewed).model(), None)
    return run(one, TEXTS, [pieces for pieces in STEPS[rank] if pieces])


def check(spread: FusedSpread, size: int) -> None:
    for found, wanted in zip(spread_hidden(spread, size), alone_hidden(spread, size), strict=True):
        rows = [hidden for hidden in found if len(hidden)]
        assert len(rows) == len(wanted) and all(torch.equal(a, b) for a, b in zip(rows, wanted))


@pytest.mark.parametrize("most_rows", [2048, 24, 0], ids=["fixed", "both", "splits"])
def test_two_ranks_give_the_bits_of_one(most_rows: int) -> None:
    check(FusedSpread(most_rows=most_rows), 2)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_four_ranks_give_the_bits_of_one_with_copies_of_experts(dtype: str) -> None:
    check(FusedSpread(dtype, redundant=4), 4)


@pytest.mark.parametrize("most_rows", [2048, pytest.param(0, marks=pytest.mark.slow)], ids=["fixed", "splits"])
def test_every_token_may_choose_the_same_experts(most_rows: int) -> None:
    """All rows go to one rank; then to copies of the same experts on all of them."""
    check(FusedSpread(skewed=(0, 1, 2), most_rows=most_rows), 2)
    copies = Placement(np.tile([7, 0, 1, 2, 5, 0, 1, 2, 4, 6, 0, 1, 2, 3, 0, 1], (LAYERS, 1)), EXPERTS, 4)
    check(FusedSpread(skewed=(0, 1, 2), trunk=copies, most_rows=most_rows), 4)


@pytest.mark.parametrize("most_rows", [2048, 0], ids=["fixed", "splits"])
def test_partial_sums_are_close(most_rows: int) -> None:
    spread = FusedSpread("float64", reproducible=False, redundant=4, most_rows=most_rows)
    for found, wanted in zip(spread_hidden(spread, 2), alone_hidden(spread, 2)):
        for one, other in zip([hidden for hidden in found if len(hidden)], wanted):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_partial_sums_of_a_row_do_not_depend_on_its_company() -> None:
    """Copies of experts share rows, but not by their place in a step."""
    spread = FusedSpread(reproducible=False, redundant=4)

    def rows(peers: ThreadPeers) -> tuple[Tensor, Tensor]:
        mine, text = Rank.of(spread, peers), TEXTS[0]
        if peers.rank:
            for _ in range(3):
                mine.step()
            return torch.zeros(0), torch.zeros(0)
        whole = mine.step((text, 0, 16, 0))
        return whole, torch.cat((mine.step((text, 0, 7, 1)), mine.step((TEXTS[1], 0, 2, 2), (text, 7, 16, 1))[2:]))

    whole, parts = run_ranks(2, rows)[0]
    assert torch.equal(whole, parts)


def test_a_rank_whose_rows_are_all_dropped_serves_the_layers_after_the_boundary() -> None:
    spread = FusedSpread(compact=True)

    def rows(rank: Rank) -> list[Tensor]:
        text = TEXTS[0]
        if rank.peers is not None and rank.peers.rank == 1:
            return [rank.step((TEXTS[1], 0, 5, 1)), rank.step((TEXTS[1], 5, 6, 1))]
        return [rank.step((text, 0, 12, 0), upper_from=[20]), rank.step((text, 12, 25, 0), upper_from=[20])]

    found = run_ranks(2, lambda peers: rows(Rank.of(spread, peers)))[0]
    assert all(torch.equal(a, b) for a, b in zip(found, rows(Rank.of(spread, None))))
    assert not found[0].any() and found[1][8:].any()


def test_experts_that_move_between_two_steps_change_nothing() -> None:
    """As a balancer moves them: slots are overwritten in place, and rows go by the new placement."""
    spread, moved = FusedSpread(), np.array([1, 0, 2, 3, 7, 5, 6, 4])

    def rank(peers: ThreadPeers) -> list[Tensor]:
        mine = Rank.of(spread, peers)
        dispatch: Any = mine.model.dispatch
        before = run(mine, TEXTS, STEPS[peers.rank][:2])
        held = len(moved) // peers.size
        for layer in range(LAYERS):
            old = [[part.clone() for part in dispatch.unit(layer, slot)] for slot in range(held)]
            for slot, expert in enumerate(moved[peers.rank * held :][:held]):
                for to, part in zip(dispatch.unit(layer, slot), old[expert % held], strict=True):
                    to.copy_(part)
            dispatch.place(layer, moved)
        return before + run(mine, TEXTS, STEPS[peers.rank][2:])

    for found, wanted in zip(run_ranks(2, rank), alone_hidden(spread, 2)):
        assert all(torch.equal(a, b) for a, b in zip([hidden for hidden in found if len(hidden)], wanted))


def test_chosen_experts_are_counted_by_layer() -> None:
    def rank(peers: ThreadPeers) -> Tensor:
        mine, seen = Rank.of(FusedSpread(skewed=(2, 5, 6)), peers), torch.zeros(LAYERS, EXPERTS, dtype=torch.int64)
        dispatch: Any = mine.model.dispatch
        dispatch.count = lambda layer, picks, live: seen[layer].scatter_add_(
            0, picks.flatten(), torch.ones_like(picks).flatten()
        )
        run(mine, TEXTS, STEPS[peers.rank][:1])
        return seen

    here, idle = run_ranks(2, rank)
    assert here.tolist() == [[0, 0, 24, 0, 0, 24, 24, 0]] * LAYERS and not idle.any()


def test_nothing_waits_and_every_step_of_a_size_launches_the_same() -> None:
    """Whatever tokens and routing; so do the launches of a rank that only serves."""

    def rank(peers: ThreadPeers) -> list[list[Any]]:
        calls: list[Any] = []

        def note(name: str, arguments: tuple[Any, ...]) -> None:
            calls.append((name, [tuple(x.shape) for x in arguments if isinstance(x, Tensor)]))

        spread, ops = FusedSpread(redundant=2), watched(row_by_row(), note)
        dispatch = spread.dispatch(peers, ops)
        mine, lists = Rank(spread.model(dispatch, ops), peers), []
        for number in range(3):
            calls.clear()
            pieces = [(TEXTS[number], 0, 9, 0)] if peers.rank == 0 else []
            with NoWaiting():
                dispatch.begin(9)
                if pieces:
                    mine.engine.step(*pieces)
                else:
                    mine.model.serve()
            lists.append(list(calls))
        return lists

    for lists in run_ranks(2, rank):
        names = [name for name, _ in lists[0]]
        assert names.count("fp4_experts_up") == LAYERS and lists[0] == lists[1] == lists[2]


def test_splits_wait_for_the_device_so_that_the_check_above_can_fail() -> None:
    def rank(peers: ThreadPeers) -> None:
        spread, ops = FusedSpread(most_rows=0), watched(row_by_row(), lambda name, arguments: None)
        dispatch = spread.dispatch(peers, ops)
        model = spread.model(dispatch, ops)
        dispatch.begin(9)
        with NoWaiting(), pytest.raises(AssertionError, match="nonzero waits for the device"):
            model.serve()

    run_ranks(2, rank)


def test_a_rehearsal_needs_nobody() -> None:
    """Before a capture a step runs once, on this rank alone."""
    dispatch = FusedSpread().dispatch(ThreadPeers(Board(2), 0))
    mine = Rank(FusedSpread().model(dispatch), None)
    with rehearsal():
        dispatch.begin(8)
        mine.model.serve()
        assert mine.engine.step((TEXTS[0], 0, 8, 0)).isfinite().all()


def test_rows_beyond_what_ranks_agreed_on_are_a_fault() -> None:
    dispatch = FusedSpread().dispatch(ThreadPeers(Board(2), 0))
    mine = Rank(FusedSpread().model(dispatch), None)
    with rehearsal(), pytest.raises(AssertionError, match="9 rows in a step that was begun for 8"):
        dispatch.begin(8)
        mine.engine.step((TEXTS[0], 0, 9, 0))


def test_one_rank_launches_what_it_did() -> None:
    """Without a dispatch a layer's experts are the operations that they were, in their order."""
    names: list[str] = []
    mine = Rank(FusedSpread().model(None, watched(row_by_row(), lambda name, arguments: names.append(name))), None)
    experts = mine.model.layers[0].experts
    x_TD = torch.randn(4, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    quantised_TD = mine.model.ops.quantise(x_TD).grid_TD
    names.clear()
    experts(x_TD, quantised_TD)
    assert names == [
        *("fp8_linear", "swiglu_quantise", "fp8_linear", "bf16_linear", "router", "expert_permutation"),
        *("fp4_experts_up", "fp4_grouped_linear", "combine"),
    ]
