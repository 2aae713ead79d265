"""Every expert and every table row has a place, and none has two in one group."""

from collections.abc import Callable

import pytest

from deepinfer.plan.types import Plan, RankPlan

PlanOf = Callable[..., Plan]


def covers(ranges: list[tuple[int, int]], total: int) -> bool:
    """Whether consecutive half-open ranges tile 0 … total."""
    edges = [0, *(stop for _, stop in ranges)]
    return [start for start, _ in ranges] == edges[:-1] and edges[-1] == total


@pytest.mark.parametrize("ranks", [8, 64, 128])
def test_experts_and_rows_tile_a_group(plan_of: PlanOf, ranks: int) -> None:
    plan = plan_of("hardware=gb200", f"parallel=ep{ranks}", "speculation=dspark")
    layout, config = plan.layout, plan.model.config
    assert [rank.rank for rank in layout.ranks] == list(range(ranks))
    assert covers([rank.experts for rank in layout.ranks], config.n_routed_experts)
    assert covers([rank.draft_experts for rank in layout.ranks], config.dspark_n_routed_experts)
    for table, rows in enumerate(config.engram_num_embeddings):
        assert covers([rank.engram_rows[table] for rank in layout.ranks], rows)


def test_shares_of_the_tables_differ_by_one_row_at_most(plan_of: PlanOf) -> None:
    ranks = plan_of("hardware=gb200", "parallel=ep64").layout.ranks
    for table in range(2):
        lengths = {rank.engram_rows[table][1] - rank.engram_rows[table][0] for rank in ranks}
        assert max(lengths) - min(lengths) <= 1


def test_expert_groups_repeat_over_the_ranks(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=gb200", "parallel=ep64", "parallel.expert=16", "parallel.engram=host")
    groups: dict[int, list[RankPlan]] = {}
    for rank in plan.layout.ranks:
        groups.setdefault(rank.rank // 16, []).append(rank)
    assert len(groups) == 4
    assert all(covers([rank.experts for rank in group], 384) for group in groups.values())


def test_redundant_experts_are_slots_of_the_group(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=gb200", "parallel=ep64", "parallel.redundant_experts=64")
    assert covers([rank.experts for rank in plan.layout.ranks], 384 + 64)


def test_context_neighbours_share_an_attention_rank(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=gb300", "parallel=ep8", "parallel.attention_dp=4", "parallel.context=2")
    assert [(rank.attention_dp, rank.context) for rank in plan.layout.ranks] == [
        (dp, cp) for dp in range(4) for cp in range(2)
    ]


def test_roles_of_a_disaggregated_deployment_lie_one_after_the_other(plan_of: PlanOf) -> None:
    plan = plan_of(
        "hardware=gb300",
        "deploy=disaggregated",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep64",
        "deploy.prefill.replicas=3",
    )
    prefill, decode = plan.layout.roles
    assert (prefill.first_rank, prefill.num_ranks, decode.first_rank, decode.num_ranks) == (0, 12, 12, 64)
    assert [rank.replica for rank in plan.layout.ranks[:12]] == [0] * 4 + [1] * 4 + [2] * 4
    assert [memory.ranks for memory in plan.memory] == ["0-11", "12-75"]


@pytest.mark.parametrize(
    ("hardware", "parallel", "domains"), [("gb200", "ep128", 2), ("b200", "ep64", 8), ("ascend950", "ep64", 1)]
)
def test_ranks_fill_whole_domains(plan_of: PlanOf, hardware: str, parallel: str, domains: int) -> None:
    assert plan_of(f"hardware={hardware}", f"parallel={parallel}").layout.num_domains == domains


def test_experts_over_several_domains_are_a_warning_with_its_cure(plan_of: PlanOf) -> None:
    (warning,) = plan_of("hardware=b200", "parallel=ep64").warnings
    assert "8 of" not in warning and "parallel.expert=8" in warning
    assert not plan_of("hardware=gb200", "parallel=ep64").warnings


def test_1200_ranks(plan_of: PlanOf) -> None:
    overrides = ("parallel.attention_dp=1200", "parallel.expert=48", "hardware=gb200", "speculation=none")
    plan = plan_of(*overrides)
    assert plan.layout.num_ranks == len(plan.layout.ranks) == 1200
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.capacity.all_sequences == 1200 * plan.scheduler.max_num_seqs


CPU = ("hardware=cpu", "model=v41_tiny", "model.weights=dummy", "parallel=ep4")


@pytest.mark.parametrize(
    ("per_node", "nodes"), [((), [0, 0, 0, 0]), (4, [0] * 4), (2, [0, 0, 1, 1]), (3, [0, 0, 0, 1]), (1, [0, 1, 2, 3])]
)
def test_ranks_on_cpus_are_of_one_machine_unless_told_otherwise(
    plan_of: PlanOf, per_node: int | tuple[()], nodes: list[int]
) -> None:
    typed = (f"hardware.node_devices={per_node}",) if per_node else ()
    plan = plan_of(*CPU, *typed)
    assert [rank.node for rank in plan.layout.ranks] == nodes
    assert [rank.device for rank in plan.layout.ranks] == [
        nodes[:index].count(node) for index, node in enumerate(nodes)
    ]
    assert plan.layout.num_nodes == len(set(nodes))
    share = plan_of(*CPU).hardware.memory_bytes * 4 // (per_node or 4)  # of a machine's memory, for a rank
    assert abs(plan.hardware.memory_bytes - share) < 4
    note = {1: None, 4: "4 ranks share this machine's memory"}.get(
        per_node or 4, f"{per_node} ranks share the memory of a node"
    )
    assert [text for text in plan.notes if "ranks share" in text] == ([note] if note else [])


def test_a_site_of_several_machines_is_told_of_when_one_of_them_has_all_ranks(plan_of: PlanOf) -> None:
    site = ("cluster=blank", "cluster.nodes=2")
    (note,) = [text for text in plan_of(*CPU, *site).notes if "stand on the first" in text]
    assert note.endswith("hardware.node_devices=2")
    assert not [text for text in plan_of(*CPU, *site, "hardware.node_devices=2").notes if "stand on" in text]
    with pytest.raises(ValueError, match="the layout needs 4 nodes: 4 with 1 × CPU"):
        plan_of(*CPU, *site, "hardware.node_devices=1")


def test_both_sides_of_a_deployment_on_cpus(plan_of: PlanOf) -> None:
    sides = ("deploy=disaggregated", "parallel@deploy.prefill.parallel=ep2", "parallel@deploy.decode.parallel=ep2")
    together = plan_of(*CPU[:3], *sides)
    assert [(rank.node, rank.device) for rank in together.layout.ranks] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    apart = plan_of(*CPU[:3], *sides, "hardware.node_devices=2")
    assert [(rank.node, rank.device) for rank in apart.layout.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
