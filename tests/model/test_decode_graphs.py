"""On a GPU: the fused model on kernels, and decode steps as CUDA graphs."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from decode_worlds import Worlds
from fused_models import trained, wide_config, wide_model
from small_models import make_step, random_tokens

from deepinfer.arch.cache import CacheLayout
from deepinfer.interfaces import StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.fused.beside import one_by_one
from deepinfer.model.fused.decode_step import DecodeStep
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import twins
from deepinfer.ops.device_choice import device_ops

pytestmark = pytest.mark.gpu

SLOTS, LENGTH, DEPTH = 12, 1100, 5
MEDIAN_ERROR, MOST_ERROR = 0.05, 0.2  # of a hidden row's norm: half of the rows, and 95 % (a router's choice may turn)


@lru_cache(maxsize=2)
def on_kernels(name: str = "wide") -> FusedModel:
    """By Hopper's own kernels, or (`trained`) the shipped model's, most of them general ones."""
    if name == "wide":
        from deepinfer.ops.hopper import hopper

        return wide_model(hopper())
    opened = trained()
    layout = CacheLayout.of(opened.config, dtype="bfloat16", block_tokens=128, backtrack=6)
    ops, _ = device_ops(opened.config, torch.bfloat16)
    made = {"layout": layout, "device": "cuda", "token_classes": opened.engram_classes, "max_positions": 2048}
    return FusedModel(opened.config, load_stored(opened), ops, **made)


@contextmanager
def nothing_waits() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def worlds(seed: int, model: FusedModel | None = None) -> Worlds:
    model = on_kernels() if model is None else model
    return Worlds(model, num_slots=SLOTS, max_model_len=LENGTH, depth=DEPTH, seed=seed)


def test_kernels_agree_with_twins() -> None:
    """Long chunks, short ones and single rows of two sequences, beyond windows, lists and candidates."""
    config, errors = wide_config(), []
    texts = [random_tokens(config, 1000, seed) for seed in (1, 2)]
    models = on_kernels(), wide_model(twins())
    caches = [ModelCache(config, model.layout, num_blocks=20, num_slots=3, device="cuda") for model in models]
    for pieces in (
        ((0, 0, 700), (1, 0, 90)),
        ((0, 700, 990), (1, 90, 93)),
        ((1, 93, 94), (0, 990, 991)),
        ((0, 991, 997),),
    ):
        step = make_step([(texts[s], first, end, s, list(range(8 * s, 8 * s + 8))) for s, first, end in pieces])
        found = [model.forward(step, cache).float() for model, cache in zip(models, caches)]
        assert all(x.isfinite().all() for x in found)
        errors.append((found[0] - found[1]).norm(dim=1) / found[1].norm(dim=1))
    whole = torch.cat(errors)
    print(
        "median", [float(x.median()) for x in errors], "95 %", float(whole.quantile(0.95)), "most", float(whole.max())
    )
    assert whole.median() <= MEDIAN_ERROR and whole.quantile(0.95) <= MOST_ERROR


def filled(both: Worlds) -> None:
    for slot in range(SLOTS):
        length = int(both.rng.choice([3, 130, 700, 1030]))
        both.admit(slot, length, int(both.rng.integers(length + 20, LENGTH + 1)), cuts=(length // 2,))
    both.go_on(np.arange(SLOTS), np.ones(SLOTS, dtype=np.int64))


@pytest.mark.parametrize("name", ["wide", "trained"])
def test_graphs_are_the_hosts_steps_bit_for_bit(name: str) -> None:
    """Random plans through graphs; the host's own way through the same kernels is the oracle. Graphs come back."""
    both = worlds(1, on_kernels(name))
    step = both.step(graphs=True, features=True, row_sizes=[4, 8, 24, 40])
    filled(both)
    for number in range(24):
        slots = both.rng.permutation(SLOTS)[: both.rng.integers(1, SLOTS + 1)]
        hidden_TD, rows, checked = both.both(step, both.plan(slots, int(both.rng.choice([0, 3, 100]))))
        assert torch.equal(rows.hidden_TD[: len(hidden_TD)], hidden_TD), number
        assert rows.hidden_TD.isfinite().all() and rows.features_TF is not None
        both.assert_equal()
        both.accept(slots, checked)
    stats = step.stats
    assert stats.replays == 24 and stats.captures == step.num_graphs and 2 < stats.captures < 20 and not stats.direct


def test_graphs_are_direct_launches_bit_for_bit() -> None:
    found = []
    for graphs in (False, True):
        both = worlds(2)
        step = both.step(graphs=graphs, features=True)
        filled(both)
        for number in range(6):
            rows = step(both.plan(np.arange(SLOTS)[::-1].copy(), (0, 100)[number % 2]))
            live = int(rows.row_starts_S1[-1])
            assert rows.features_TF is not None
            found.append((rows.hidden_TD[:live].clone(), rows.features_TF[:live].clone()))
            both.go_on(np.arange(SLOTS), np.ones(SLOTS, dtype=np.int64))
    for one, other in zip(found[:6], found[6:]):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_a_row_has_the_same_bits_in_any_company_and_size() -> None:
    found = []
    for sizes, company in (([1], 1), (None, SLOTS), ([72], SLOTS), ([16], 3)):
        both = worlds(3)
        filled(both)
        step = DecodeStep(both.model, both.device, both.sequences, graphs=True, row_sizes=sizes)
        rows = step(both.plan(np.arange(company)))
        found.append(rows.hidden_TD[0].clone())
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_no_launch_of_a_step_waits() -> None:
    both = worlds(4)
    filled(both)
    plan: StepPlan = both.plan(np.arange(5), 4)
    columns = plan.block_tables.shape[1]
    both.step(graphs=True).capture(5, 4, columns)  # compiles what is not compiled yet
    step = both.step(graphs=True)
    with nothing_waits():
        step.capture(5, 4, columns)
        for _ in range(3):
            step(plan)
    assert step.stats.captures == 1 and step.stats.replays == 3
    with pytest.raises(RuntimeError), nothing_waits():
        both.sequences.num_tokens_N.sum().item()


def test_a_step_that_waits_cannot_be_captured() -> None:
    model = on_kernels()
    ops = replace(
        model.ops,
        combine=lambda parts, places, shared: model.ops.combine(parts, places, shared) * int(places.max() > -2),
    )
    waiting = wide_model(ops)
    both = worlds(5, waiting)
    both.admit(0, 10, LENGTH)
    with pytest.raises(RuntimeError, match="cannot be captured into a CUDA graph"):
        both.step(graphs=True)(both.plan(np.array([0])))
    both = worlds(5)
    both.admit(0, 10, LENGTH)
    assert both.step(graphs=True)(both.plan(np.array([0]))).hidden_TD.isfinite().all(), "the device goes on"


def test_graphs_that_were_closed_are_captured_again() -> None:
    both = worlds(6)
    both.admit(0, 40, LENGTH)
    step, plan = both.step(graphs=True), both.plan(np.array([0]))
    before = step(plan).hidden_TD[:1].clone()
    step.close()
    assert not step.num_graphs
    assert torch.equal(step(plan).hidden_TD[:1], before) and step.num_graphs == 1


@pytest.mark.parametrize("rows", [1, 5, 96])
def test_branches_change_no_bit(rows: int) -> None:
    """Launches beside others, or one after another: without a graph and as one."""
    found = []
    for branches in (True, False):
        for graphs in (True, False):
            both = Worlds(on_kernels(), num_slots=rows, max_model_len=LENGTH, depth=0, seed=7)
            for slot in range(rows):
                both.admit(slot, 9, LENGTH)
            step, plan = both.step(graphs=graphs), both.plan(np.arange(rows))
            with nullcontext() if branches else one_by_one():
                step(plan)
                found.append(step(plan).hidden_TD[:rows].clone())
    assert found[0].isfinite().all() and all(torch.equal(found[0], other) for other in found[1:])
