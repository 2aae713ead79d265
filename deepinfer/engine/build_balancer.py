"""The balancer of experts that a plan chose, and the placement that it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.build_model import load_implementation

if TYPE_CHECKING:
    import torch

    from deepinfer.engine.build_seat import Seat
    from deepinfer.parallel.all_to_all import AllToAllDispatch
    from deepinfer.parallel.device_dispatch import DeviceDispatch
    from deepinfer.parallel.eplb.balancer import EplbBalancer
    from deepinfer.parallel.eplb.saved import Saved
    from deepinfer.plan.types import Node, Plan, RolePlan


def moves_experts(plan: Plan) -> bool:
    """Whether experts may change their places while the plan runs."""
    return _node(plan) is not None


def saved_placement(plan: Plan, role: RolePlan) -> Saved | None:
    """What an earlier run saved and this one begins with. Raises Refused where the file does not fit."""
    node = _node(plan)
    path = node.settings.get("placement") if node is not None else None
    if path is None:
        return None
    from deepinfer.parallel.eplb.saved import read_placement

    config = plan.model.config
    slots = config.n_routed_experts + role.redundant_experts
    sizes = {"layers": config.num_hidden_layers, "experts": config.n_routed_experts, "ranks": role.expert}
    try:
        return read_placement(path, **sizes, slots=slots)
    except ValueError as error:
        raise _refused(path, error) from error


def build_balancer(
    plan: Plan, seat: Seat, dispatch: AllToAllDispatch | DeviceDispatch | None, device: str | torch.device = "cpu"
) -> EplbBalancer | None:
    """None where experts stay where they are; else before any step becomes a graph, for counting is part of it. Raises Refused
    where ranks begin with different placements."""
    node = _node(plan)
    if node is None or dispatch is None or seat.groups.moves is None:
        return None
    settings = {key: value for key, value in node.settings.items() if key != "placement"}
    load_WLE: Any = None if seat.saved is None else seat.saved.load_WLE
    make = load_implementation(node.implementation)
    try:
        balancer: EplbBalancer = make(dispatch, seat.groups.moves, load_WLE=load_WLE, device=device, **settings)
    except ValueError as error:
        raise _refused(node.settings["placement"], error) from error
    return balancer


def _refused(path: Any, error: ValueError) -> Refused:
    asked, fix = f"balancer.placement={path}", "balancer.placement=null"
    return Refused([Problem(asked=asked, found=str(error), fix=fix, code=ExitCode.PLAN)])


def _node(plan: Plan) -> Node | None:
    return next((node for node in plan.graph if node.name == "balancer" and node.implementation), None)
