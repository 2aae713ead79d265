"""balancer=eplb at plan time: refused where experts have nowhere to go, else a node of the graph and room for what moves."""

from collections.abc import Callable

import pytest

from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]


def refused(plan_of: PlanOf, *overrides: str) -> tuple[str, str]:
    """What the one problem found, and what it says to type."""
    with pytest.raises(PlanErrors) as error:
        plan_of(*overrides)
    (problem,) = error.value.problems
    assert problem.asked == "balancer=eplb"
    return problem.found, problem.fix


def test_one_rank_has_nothing_to_balance(plan_of: PlanOf) -> None:
    found, fix = refused(plan_of, "balancer=eplb")
    assert found == "parallel.expert=1 keeps all experts on every rank" and fix == "balancer=static"
    assert refused(plan_of, "balancer=eplb", "parallel=dp2")[1] == "balancer=static"


def test_one_expert_a_rank_needs_copies(plan_of: PlanOf) -> None:
    found, fix = refused(plan_of, "balancer=eplb", "parallel=ep8")
    assert found == "parallel.expert=8 gives each rank one of the 8 experts of v41_tiny"
    assert plan_of("balancer=eplb", "parallel=ep8", fix).graph


def test_a_world_balances_one_group(plan_of: PlanOf) -> None:
    """Two groups of two ranks; six ranks of one group cannot share eight experts."""
    found, fix = refused(plan_of, "balancer=eplb", "parallel=ep2", "parallel.attention_dp=4")
    assert found == "parallel.expert=2 makes 2 groups of 4 ranks, each with all experts" and fix == "parallel.expert=4"
    assert plan_of("balancer=eplb", "parallel=ep2", "parallel.attention_dp=4", fix).graph
    assert refused(plan_of, "balancer=eplb", "parallel=ep2", "parallel.attention_dp=6")[1] == "balancer=static"
    assert plan_of("balancer=static", "parallel=ep2", "parallel.attention_dp=4").graph


def test_a_balancer_is_a_node_with_its_keys(plan_of: PlanOf) -> None:
    plan = plan_of("balancer=eplb", "parallel=ep4", "balancer.budget_bytes=1MiB")
    (node,) = [node for node in plan.graph if node.name == "balancer"]
    assert node.implementation == "deepinfer.parallel.eplb.balancer:EplbBalancer" and not node.planned
    assert node.needs == ("dispatch",) and node.settings["budget_bytes"] == 2**20
    assert not [node for node in plan_of("parallel=ep4").graph if node.name == "balancer"]


def test_one_side_with_spread_experts_is_enough(plan_of: PlanOf) -> None:
    sides = ("deploy=disaggregated", "hardware=h200", "balancer=eplb", "parallel@deploy.prefill.parallel=ep8")
    assert [node for node in plan_of(*sides, "parallel@deploy.decode.parallel=ep16").graph if node.name == "balancer"]


def test_what_moves_has_room_in_the_budget(plan_of: PlanOf) -> None:
    """Of 48 slots a layer: as many again, and three experts that are sent off in a step."""
    layout = ("hardware=h200", "parallel=ep8")
    still, moving = (plan_of(*layout, *more).memory[0].items for more in ((), ("balancer=eplb",)))
    (room,) = [item for item in moving if item.name == "moving"]
    experts = next(item.num_bytes for item in moving if item.name == "experts")
    assert room.num_bytes == experts // 40 + 64 * 2**20
    assert [item.name for item in moving if item.name != "moving"] == [item.name for item in still]
