"""The engine of a server: in processes of its own, so that it shares no interpreter lock with HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from deepinfer.engine.build import build_graph
from deepinfer.engine.build_world import FleetGraph, build_fleet

if TYPE_CHECKING:
    from deepinfer.engine.build import EngineGraph
    from deepinfer.plan.types import Plan


def build_served(plan: Plan, tell: Callable[[str], None], *, restarts: int = 0) -> FleetGraph:
    """All ranks of the plan, one of them too, as children of this process; `tell` hears what they are at until they are ready,
    and again whenever they are restarted. `restarts`: how often the only rank of a plan is; of several, executor=distributed
    says so. Raises Refused."""
    return build_fleet(plan, plan.layout.ranks, tell=tell, restarts_alone=restarts)


def build_here(plan: Plan) -> EngineGraph:
    """The engine of one rank in this process, on the machine's clock: for tests, and for runs without a socket."""
    return build_graph(plan, real_time=True)
