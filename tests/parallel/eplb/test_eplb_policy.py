"""Placements for measured loads: valid, even, the same everywhere, and as good as those of others."""

import sys
from pathlib import Path

import numpy as np
import pytest

from deepinfer.parallel.eplb.policy import balance, peak_and_mean
from deepinfer.parallel.placement import Placement

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # benchmarks are no package
from eplb_loads import drawn
from eplb_peers import PEERS

SHAPES = [(8, 0), (8, 64), (32, 32), (64, 128), (128, 0), (128, 128)]  # ranks, spare slots


def summed(load_WLE: np.ndarray, expert_LP: np.ndarray, ranks: int) -> float:
    """Σ of peaks, by the book."""
    layers, slots = expert_LP.shape
    found = 0.0
    for layer in range(layers):
        share_WE = load_WLE[:, layer] / np.bincount(expert_LP[layer], minlength=load_WLE.shape[2])
        found += share_WE[:, expert_LP[layer]].reshape(-1, ranks, slots // ranks).sum(2).max(1).sum()
    return found


def start(layers: int, ranks: int, spare: int, experts: int = 384) -> np.ndarray:
    return Placement.initial(layers, experts, ranks, spare).expert_LP


@pytest.mark.parametrize("load", ["zipf", "bursty", "topics"])
@pytest.mark.parametrize(("ranks", "spare"), SHAPES)
def test_balance_is_within_one_percent_of_the_best_peer(load: str, ranks: int, spare: int) -> None:
    load_WLE = drawn(load, 40, 2, 384, seed=ranks + spare)
    expert_LP = balance(load_WLE, ranks, spare)
    ours = summed(load_WLE, expert_LP, ranks)
    theirs = [
        sum(summed(load_WLE[:, [at]], peer(load_WLE[:, at], ranks, spare)[None], ranks) for at in range(2))
        for peer in PEERS.values()
    ]
    assert ours <= 1.01 * min(theirs)
    Placement(expert_LP, 384, ranks)  # every expert lies somewhere, all ranks have as many slots
    per_rank = expert_LP.reshape(2, ranks, -1)
    assert all(len(set(slots)) == len(slots) for layer in per_rank.tolist() for slots in layer), (
        "no expert twice on a rank"
    )


def test_a_biased_load_shows_the_gain() -> None:
    """The busiest rank of experts in order has most of the load; balanced, hardly more than its share."""
    chance_E = np.where(np.arange(64) < 8, 12.0, 1.0)
    load_WLE = np.random.default_rng(0).multinomial(4096, chance_E / chance_E.sum(), (30, 3))
    before, mean = peak_and_mean(load_WLE, start(3, 8, 0, 64), 8)
    without, _ = peak_and_mean(load_WLE, balance(load_WLE, 8, 0), 8)
    spread, _ = peak_and_mean(load_WLE, balance(load_WLE, 8, 8), 8)
    assert before > 4.5 * mean and without < 1.15 * mean and spread < 1.1 * mean


def test_peaks_are_those_by_the_book() -> None:
    load_WLE = drawn("bursty", 12, 3, 32, tokens=500)
    expert_LP = balance(load_WLE, 4, 8)
    peak, mean = peak_and_mean(load_WLE, expert_LP, 4)
    assert peak == pytest.approx(summed(load_WLE, expert_LP, 4)) and mean == 12 * 3 * 500 / 4


@pytest.mark.parametrize("seed", range(8))
def test_a_new_placement_is_never_worse_than_the_one_in_use(seed: int) -> None:
    load_WLE = drawn(["zipf", "bursty", "topics"][seed % 3], 20, 2, 48, seed=seed, tokens=2000)
    keep_LP = balance(drawn("zipf", 20, 2, 48, seed=99 - seed), 4, 8)
    for gain in (0.0, 0.02):
        then_LP = balance(load_WLE, 4, 8, keep_LP=keep_LP, min_gain=gain)
        for at in range(2):
            was, now = (summed(load_WLE[:, [at]], p[[at]], 4) for p in (keep_LP, then_LP))
            assert now < was * (1 - gain) or np.array_equal(keep_LP[at], then_LP[at])


def test_a_layer_stays_where_little_would_be_gained() -> None:
    load_WLE = drawn("bursty", 20, 2, 48, tokens=2000)
    keep_LP = start(2, 4, 8, 48)
    assert np.array_equal(balance(load_WLE, 4, 8, keep_LP=keep_LP, min_gain=0.9), keep_LP)
    assert not np.array_equal(balance(load_WLE, 4, 8, keep_LP=keep_LP, min_gain=0.01), keep_LP)


def test_the_placement_of_the_same_loads_is_kept() -> None:
    load_WLE = drawn("topics", 20, 2, 48, tokens=2000)
    keep_LP = balance(load_WLE, 4, 8)
    again_LP = balance(load_WLE, 4, 8, keep_LP=keep_LP, min_gain=0.005)
    assert np.array_equal(again_LP, keep_LP)


def test_few_experts_move_where_loads_drift() -> None:
    """Named anew without regard to the old placement, nearly all slots would change."""
    load_WLE = drawn("zipf", 80, 2, 96)
    keep_LP = balance(load_WLE[:40], 8, 16)
    then_LP = balance(load_WLE[40:], 8, 16, keep_LP=keep_LP)
    blind_LP = balance(load_WLE[40:], 8, 16)
    assert (then_LP != keep_LP).sum() < 0.6 * (blind_LP != keep_LP).sum()


def test_placements_do_not_depend_on_when_they_are_computed() -> None:
    load_WLE = drawn("bursty", 30, 3, 64, tokens=1000)
    first = balance(load_WLE, 8, 8)
    balance(drawn("zipf", 9, 1, 64), 16, 0)
    assert np.array_equal(balance(np.asfortranarray(load_WLE), 8, 8), first)


@pytest.mark.parametrize("experts", [1, 2, 3, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_small_layers_of_any_shape_have_a_placement(experts: int, ranks: int) -> None:
    for spare in range(-experts % ranks, 3 * ranks, ranks):
        for load_WLE in (np.zeros((3, 1, experts), np.int64), drawn("zipf", 5, 1, experts, tokens=50)):
            Placement(balance(load_WLE, ranks, spare), experts, ranks)


def test_huge_loads_do_not_overflow() -> None:
    load_WLE = drawn("zipf", 70, 1, 64) * 10**9
    assert np.array_equal(balance(load_WLE, 8, 8), balance(load_WLE // 10**3, 8, 8))


def test_slots_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="64 experts \\+ 3 copies do not divide over 8 ranks"):
        balance(np.ones((1, 1, 64), np.int64), 8, 3)
