"""What a model of fused operations is given to reach other ranks' n-gram rows and to share prompts, by the plan alone."""

import pytest
import torch
from thread_peers import Board, ThreadPeers

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build_device_reach import device_reach
from deepinfer.engine.build_spread import RankGroups
from deepinfer.engine.world.rank_main import shape_of
from deepinfer.parallel.context import DEVICE_LEAST_ROWS, LEAST_ROWS
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

TABLE, CPU, GPU = "layers.1.engram.embed.weight", torch.device("cpu"), torch.device("cuda")


def plan_of(*overrides: str) -> Plan:
    spec = load("model=v41_tiny", *overrides)
    return resolve(spec, probe(spec))


@pytest.mark.parametrize(
    ("overrides", "on_host"),
    [
        (("hardware=h200", "parallel.engram=host"), True),
        (("hardware=h200",), False),
        (("hardware=cpu", "parallel.engram=host"), False),
    ],
    ids=["host", "device", "cpu"],
)
def test_one_rank_has_all_rows_where_the_plan_says(overrides: tuple[str, ...], on_host: bool) -> None:
    plan = plan_of(*overrides)
    assert device_reach(plan, None, CPU) == {"host_tables": on_host} and plan.unbuilt == ()
    assert plan.memory[0].item("engram").place == ("host" if on_host else "device")


@pytest.mark.parametrize("place", ["sharded", "host"])
def test_ranks_share_tables_and_prompts(place: str) -> None:
    """On hosts a GPU's rank has its own rows alone, as on devices."""
    plan = plan_of("hardware=h200", "parallel=cp2", "parallel.attention_dp=2", f"parallel.engram={place}")
    assert shape_of(plan, plan.layout.roles[0].name).tables
    (total,), spans = plan.model.config.engram_num_embeddings, []
    for number, rank in enumerate(plan.layout.ranks):
        tables, context = ThreadPeers(Board(4), number), ThreadPeers(Board(2), number % 2)
        groups = RankGroups(rank=rank, tables=tables, context=context)
        found = device_reach(plan, groups, CPU)
        assert found["host_tables"] == (place == "host")
        assert found["tables"].peers is tables and found["division"].peers is context
        spans.append(groups.part(plan).rows[TABLE])
        assert found["tables"].bounds[0][number : number + 2] == list(spans[-1])
    assert [first for first, _ in spans] + [total] == [0] + [end for _, end in spans]


def test_a_gpu_divides_what_is_longer_than_its_graphs() -> None:
    plan = plan_of("hardware=h200", "parallel=cp2")
    groups = RankGroups(rank=plan.layout.ranks[0], context=ThreadPeers(Board(2), 0))
    for device, least in ((CPU, LEAST_ROWS), (GPU, DEVICE_LEAST_ROWS)):
        division = device_reach(plan, groups, device)["division"]
        assert [division.divides(torch.tensor([rows]).numpy()) for rows in (least - 1, least)] == [False, True]


def test_a_cpu_keeps_whole_tables() -> None:
    plan = plan_of("hardware=cpu", "parallel=cp2", "parallel.engram=host")
    groups = RankGroups(rank=plan.layout.ranks[0], context=ThreadPeers(Board(2), 0))
    assert not shape_of(plan, plan.layout.roles[0].name).tables and groups.part(plan).rows == {}
