"""A GPU with little memory: blocks are what is left, a full cache is served, what does not fit costs time and no answer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from golden_engine import run
from test_gpu_engine import executor_of

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_memory import held_bytes
from deepinfer.engine.memory_profile import CLOSE, MIB, fit_blocks, planned_bytes, profile_memory
from deepinfer.engine.worst_steps import run_worst_steps
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

pytestmark = pytest.mark.gpu

BASE = ("hardware=h200", "model=v41_tiny", "model.max_model_len=4096", "scheduler.max_num_seqs=16")
LARGE_STEPS = ("scheduler.max_num_batched_tokens=4096", "scheduler.max_prefill_tokens=4096")  # beyond all graphs
DRAFTS = ("speculation=dspark", "speculation.back_off=false", "speculation.cost_curve=none")
LITTLE = 40 * MIB


def plan_of(*overrides: str) -> Plan:
    spec = load(*BASE, *overrides)
    return resolve(spec, probe(spec))


def built(*overrides: str) -> EngineGraph:
    return build_graph(plan_of(*overrides), poison_freed=True)


@contextmanager
def only(num_bytes: int) -> Iterator[None]:
    """Torch has no more than so many bytes of the device: behind them its allocator runs out as on a full one."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def in_use() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def all_that_is_left() -> list[torch.Tensor]:
    """Also between what is allocated already."""
    found, size = [], 1 << 26
    while size >= 512:
        try:
            found.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return found


def requests() -> tuple[list[np.ndarray], list[SamplingParams]]:
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 3000, length) for length in (1500, 1400, 40, 1300, 900, 5, 1200, 700, 64, 1000)]
    params = [
        SamplingParams(max_tokens=12, temperature=float(s % 2), seed=s, ignore_eos=True, logprobs=s % 3)
        for s in range(10)
    ]
    return prompts, params


@cache
def reference() -> list[dict]:
    return run(built(*LARGE_STEPS, "cache.memory_bytes=256MiB"), *requests())


@pytest.mark.parametrize("options", [(), DRAFTS], ids=["plain", "drafts"])
def test_a_full_device_costs_time_and_no_answer(options: tuple[str, ...]) -> None:
    wanted = reference()
    graph = built(*LARGE_STEPS, *options, "cache.memory_bytes=256MiB")
    with only(in_use() + LITTLE):
        assert run(graph, *requests()) == wanted
    stats = graph.engine.stats()
    assert stats.lost_steps > 0 and stats.preemptions >= stats.lost_steps
    assert (stats.blocks_used, stats.slots_used) == (0, 0)
    assert run(graph, *requests()) == wanted


def test_without_any_memory_requests_are_refused_and_the_engine_lives_on() -> None:
    wanted = reference()
    graph = built(*LARGE_STEPS, "cache.memory_bytes=256MiB")
    engine = graph.engine
    prompt = np.arange(3, 60)
    run(graph, [prompt], [SamplingParams(max_tokens=2)])
    executor_of(graph).lanes.chunks = None  # chunks need memory of their own then
    with only(in_use() + 1):
        hoard = all_that_is_left()
        ids = [engine.submit(prompt + number, SamplingParams(max_tokens=4))[0] for number in range(3)]
        errors = {}
        while engine.has_work:
            errors |= {event.request_id: event.error for event in engine.step() if event.error}
    del hoard
    assert sorted(errors) == ids
    assert all(
        "memory ran out on a device of" in error and "type: cache.num_blocks=" in error for error in errors.values()
    )
    assert run(graph, *requests()) == wanted


def test_blocks_are_those_that_fit_and_a_full_cache_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.engine import build_device, memory_profile

    found = []

    def noted(executor, limits):
        found.append(profile_memory(executor, limits))
        return found[-1]

    limit = in_use() + 900 * MIB
    total = torch.cuda.get_device_properties(0).total_memory

    def left(device: object = None) -> tuple[int, int]:
        return limit - torch.cuda.memory_reserved(), total

    monkeypatch.setattr(memory_profile, "profile_memory", noted)
    monkeypatch.setattr(memory_profile, "RESERVE_SHARE", 40 * MIB / total)
    monkeypatch.setattr(torch.cuda, "mem_get_info", left)
    monkeypatch.setattr(build_device, "_is_tight", lambda memory: True)
    plan = plan_of("cache.memory_bytes=4GiB", *DRAFTS, "scheduler.max_num_batched_tokens=1024")
    with only(limit):
        graph = build_graph(plan)
        (profile,), blocks = found, graph.limits.num_blocks
        assert blocks == fit_blocks(profile, plan.memory[0], plan.cache.padded_block_bytes).num_blocks
        assert any("blocks where the plan has" in notice for notice in graph.notices)
        assert 100 * MIB < blocks * plan.cache.padded_block_bytes < 900 * MIB, "what is left, and not much more"
        rng, longest = np.random.default_rng(1), min(4000, blocks * 128 // 16 - 128)
        prompts = [rng.integers(3, 3000, longest) for _ in range(20)]
        params = [
            SamplingParams(max_tokens=60, temperature=1.0, seed=s, logprobs=5, ignore_eos=True) for s in range(20)
        ]
        answers = run(graph, prompts, params)
    stats = graph.engine.stats()
    assert all(len(answer["tokens"]) == 60 for answer in answers)
    assert stats.lost_steps == 0 and stats.blocks_peak > 0.9 * min(blocks, 16 * (longest + 60) // 128)
    graph.engine.close()


@pytest.mark.parametrize("options", [(), DRAFTS], ids=["plain", "drafts"])
def test_the_planned_bytes_are_held(options: tuple[str, ...]) -> None:
    """Behind the worst steps, without cache blocks; the driver's context and the code of kernels are nobody's."""
    plan = plan_of("cache.memory_bytes=64MiB", *options)
    device = torch.device("cuda")
    reference.cache_clear()
    gc.collect()
    before = held_bytes(device)
    graph = build_graph(plan)
    first, settled = (profile_memory(executor_of(graph), graph.limits) for _ in range(2))
    planned = planned_bytes(plan.memory[0])
    print("held", settled.held - before, "step", first.step, settled.step, "planned", planned)
    assert settled.held - before + first.step == pytest.approx(sum(planned), rel=CLOSE)
    graph.engine.close()


def test_what_is_routed_where_changes_no_byte() -> None:
    """All rows of the worst steps to the same experts, or spread over them."""
    from deepinfer.engine import worst_steps

    plan = plan_of("cache.memory_bytes=64MiB", *LARGE_STEPS)
    graph = build_graph(plan)
    executor, peaks = executor_of(graph), []
    rng = np.random.default_rng(2)
    for _ in range(2):
        for spread in (False, True):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            with pytest.MonkeyPatch.context() as patch:
                if spread:
                    patch.setattr(
                        worst_steps.np, "ones", lambda shape, dtype=float: rng.integers(3, 3000, shape).astype(dtype)
                    )
                run_worst_steps(executor, graph.limits)
            torch.cuda.synchronize()
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[2] == peaks[3]
    graph.engine.close()
