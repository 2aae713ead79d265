"""Worlds of GPUs: one rank over NCCL, whose exchanges lie in its graphs; and as many as there are, equal to one GPU."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.build_seat import Seat, SharedCurve
from deepinfer.engine.build_world import build_fleet
from deepinfer.engine.world.rank_device import use_device
from deepinfer.parallel.groups import Groups, WorldShape
from deepinfer.parallel.meeting import Room
from deepinfer.parallel.peers import TorchPeers
from deepinfer.plan.types import Plan

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from golden_engine import run
from test_gpu_engine import DRAFTS, ON_GPU, executor_of, plain, requests

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve

REPRODUCIBLE = "sampling=reproducible"


def plan_of(*overrides: str) -> Plan:
    spec = load(*ON_GPU, *overrides)
    return resolve(spec, probe(spec))


@pytest.fixture
def nccl() -> Iterator[TorchPeers]:
    """A group of one."""
    use_device("cuda", plan_of().layout.ranks[0])
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield TorchPeers(dist.group.WORLD)
    gc.collect()  # graphs end before the groups that they speak to
    dist.destroy_process_group()


def seated(plan: Plan, peers: TorchPeers) -> EngineGraph:
    """An engine all of whose experts are with its own group."""
    seat = Seat(
        rank=plan.layout.ranks[0],
        role=plan.layout.roles[0],
        memory=plan.memory[0],
        shape=WorldShape(attention_dp=1, context=1, expert=1),
        groups=Groups(experts=peers),
        curve=SharedCurve(dist.HashStore(), measures=True),
    )
    return build_graph(plan, seat=seat, poison_freed=True)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [(), DRAFTS], ids=["plain", "drafts"])
def test_exchanges_over_nccl_inside_of_graphs_give_the_bits_of_a_rank_alone(
    nccl: TorchPeers, options: tuple[str, ...]
) -> None:
    graph = seated(plan_of(REPRODUCIBLE, *options, "scheduler.async_depth=1"), nccl)
    executor = executor_of(graph)
    assert executor.company is not None and executor.lanes.decode is not None
    for temperature in (0.0, 1.0):
        prompts, params = requests(16, temperature)
        assert run(graph, prompts, params) == run(plain(), prompts, params)
        executor.agree(Room(24, 4))  # as for another rank's step, in which this one has no rows
        executor.serve_forward()
        executor.serve_draft()
        executor.agree(Room())
    stats, served = executor.lanes.decode.stats, executor.company.forward.stats
    assert stats.replays > stats.direct and served.replays == 2 and served.captures > 0
    graph.engine.close()


@pytest.mark.multi_gpu
@pytest.mark.parametrize("layout", ["ep2", "dp2"])
@pytest.mark.parametrize("options", [(), DRAFTS, ("cache=prefix", *DRAFTS)], ids=["plain", "drafts", "prefix"])
def test_two_gpus_give_the_bits_of_one(layout: str, options: tuple[str, ...]) -> None:
    """Who has no requests any more serves the others."""
    plan = plan_of(REPRODUCIBLE, f"parallel={layout}", *options)
    fleet = build_fleet(plan, plan.layout.ranks)
    try:
        for count, temperature in ((1, 0.0), (16, 1.0), (15, 0.0)):
            prompts, params = requests(count, temperature)
            assert run(fleet, prompts, params) == run(plain(), prompts, params)  # type: ignore[arg-type]
    finally:
        fleet.engine.close()


@pytest.mark.multi_gpu
def test_every_gpu_of_this_host_is_a_rank() -> None:
    """The largest group among which the model's experts can be spread evenly."""
    most = max(count for count in (2, 4, 8) if count <= torch.cuda.device_count())
    plan = plan_of(REPRODUCIBLE, f"parallel=ep{most}")
    fleet = build_fleet(plan, plan.layout.ranks)
    try:
        prompts, params = requests(16, 1.0)
        assert run(fleet, prompts, params) == run(plain(), prompts, params)  # type: ignore[arg-type]
    finally:
        fleet.engine.close()
