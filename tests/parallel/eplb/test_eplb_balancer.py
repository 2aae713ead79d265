"""The balancer of each rank: when it plans, what it moves, what it tells, and that all ranks do the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_slots import UNIT_BYTES, FakeSlots, shuffled
from thread_peers import ThreadPeers, run_ranks

from deepinfer.parallel.eplb.balancer import BALANCE, FINISH, GATHER, PLAN_STEPS, BalancerState, EplbBalancer
from deepinfer.parallel.eplb.saved import read_placement
from deepinfer.parallel.placement import Placement

LAYERS, EXPERTS, RANKS, SPARE = 2, 16, 4, 4
Run = Callable[[EplbBalancer, FakeSlots, Callable[[int], None]], object]


def ranks(run: Run, *, biased: bool = True, min_gain: float = 0.05, **keys: object) -> list[object]:
    """Run as four ranks. `run` gets a function for a step: rows of this rank, then the balancer, then a look at all slots."""
    chance_E = np.where(np.arange(EXPERTS) < 3, 20.0, 1.0) if biased else np.ones(EXPERTS)
    settings = {"interval_steps": 0, "window_steps": 8, "budget_bytes": UNIT_BYTES, "min_gain": min_gain, **keys}

    def rank(peers: ThreadPeers) -> object:
        placement = settings.get("placement") or Placement.initial(LAYERS, EXPERTS, RANKS, SPARE)
        slots, rng = FakeSlots(placement, peers.rank), np.random.default_rng(peers.rank)
        balancer = EplbBalancer(slots, peers, **{k: v for k, v in settings.items() if k != "placement"})

        def step(asked: int = 0) -> None:
            for layer in range(LAYERS):
                picks_TX = rng.choice(EXPERTS, (32, 3), p=chance_E / chance_E.sum())
                slots.count(layer, torch.from_numpy(picks_TX))
            balancer.after_step(asked)
            slots.check()

        found = run(balancer, slots, step)
        balancer.close()
        return found

    return run_ranks(RANKS, rank)


def test_a_biased_load_is_balanced_while_steps_go_on() -> None:
    """Every sixteen steps, the first time after four: planned beside the steps, moved one expert a step."""

    def run(balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]) -> list[BalancerState]:
        states = []
        for number in range(1, 61):
            step(GATHER if number in (3, 60) else 0)
            states.append(balancer.inspect())
        return states

    found = ranks(run, interval_steps=16)
    assert all(states == found[0] for states in found), "all ranks do the same after the same step"
    states = found[0]
    assert [state.planning for state in states[:9]] == [False] * 3 + [True] * PLAN_STEPS + [False] * 2
    before, after = states[2], states[-1]
    assert before.peak_tokens > 1.6 * before.mean_tokens
    assert after.peak_tokens < 1.35 * after.mean_tokens
    assert before.window_steps == 3 and after.window_steps == 8 and after.num_rebalances >= 1
    assert after.moved_bytes == after.moved * UNIT_BYTES > 0 and after.moves_left == 0 and after.at_rest
    assert sum(after.rank_tokens) == pytest.approx(after.mean_tokens * RANKS)
    assert max(after.rank_tokens) < 1.35 * after.mean_tokens < 1.35 * after.peak_tokens
    told = str(after).splitlines()
    assert "where 1 is perfect" in told[2] and [line.split()[0] for line in told[3:]] == [
        "rank",
        *map(str, range(RANKS)),
    ]
    moved = [state.moved for state in states]
    assert max(np.diff(moved)) <= RANKS, "a rank takes no more than the budget"


def test_nothing_moves_where_little_would_be_gained() -> None:
    def run(balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]) -> BalancerState:
        for _ in range(20):
            step(BALANCE)
        return balancer.inspect()

    state = ranks(run, biased=True, min_gain=0.9)[0]
    assert state.num_rebalances == state.moved == 0 and state.num_steps == 20 and state.window_steps == 8
    assert state.placement == Placement.initial(LAYERS, EXPERTS, RANKS, SPARE).expert_LP.tolist()


def test_without_an_interval_it_acts_only_when_asked_and_then_at_once_if_told_so() -> None:
    def run(
        balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]
    ) -> tuple[BalancerState, bool, BalancerState]:
        for _ in range(10):
            step()
        idle = balancer.inspect()
        step(FINISH)
        return idle, balancer.busy, balancer.inspect()

    idle, busy, state = ranks(run)[0]
    assert idle.num_rebalances == 0 and idle.window_steps == 0
    assert not busy and state.num_rebalances == 1 and state.moved > 0 and state.moves_left == 0


def test_a_wish_while_experts_move_waits_until_they_are_there() -> None:
    def run(balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]) -> tuple[list[int], list[int]]:
        planned, left = [], []
        for number in range(80):
            step(BALANCE if number in (4, 10) else 0)
            state = balancer.inspect()
            left.append(state.moves_left)
            planned.append(state.planning)
        return planned, left

    planned, left = ranks(run)[0]
    assert left[10] > 0, "experts were on their way when it was asked again"
    assert not planned[10] and any(planned[11:]) and left[planned.index(True, 11)] == 0


def test_a_saved_placement_and_its_loads_are_where_the_next_run_begins(tmp_path: Path) -> None:
    path = tmp_path / "placement.safetensors"

    def first(balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]) -> BalancerState:
        for _ in range(10):
            step()
        step(FINISH)
        if slots.rank == 0:
            balancer.save(path)
        return balancer.inspect()

    def second(balancer: EplbBalancer, slots: FakeSlots, step: Callable[..., None]) -> BalancerState:
        step(GATHER)
        return balancer.inspect()

    was = ranks(first)[0]
    saved = read_placement(path, layers=LAYERS, experts=EXPERTS, ranks=RANKS, slots=EXPERTS + SPARE)
    now = ranks(second, placement=saved.placement, load_WLE=saved.load_WLE)[0]
    assert now.placement == was.placement and now.window_steps == 8
    assert now.mean_tokens == 8 * LAYERS * RANKS * 32 * 3 / RANKS, "seven kept steps and the new one, each counted once"


def test_ranks_that_begin_with_different_placements_refuse() -> None:
    def rank(peers: ThreadPeers) -> None:
        slots = FakeSlots(shuffled(peers.rank // 2, LAYERS, EXPERTS, RANKS, SPARE), peers.rank)
        EplbBalancer(slots, peers, interval_steps=0, window_steps=4, budget_bytes=1, min_gain=0.0)

    with pytest.raises(ValueError, match="of the ranks that share experts, 2, 3 begin with another placement than 0"):
        run_ranks(RANKS, rank)
