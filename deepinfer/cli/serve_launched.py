"""A launched world that serves: HTTP is where its rank 0 is, with the settings that `launch` wrote into the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.cli.serve import serve
from deepinfer.config.env import foreign
from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from deepinfer.config.serving import Serving
    from deepinfer.engine.build_world import FleetGraph
    from deepinfer.plan.types import Plan


def serve_launched(
    plan: Plan, replica: int, start: Callable[[Callable[[str], None]], FleetGraph] | None = None
) -> tuple[int, bool]:
    """Serve until a signal: the exit code, and whether ranks were lost. `start(tell)` waits until all ranks are ready; without
    it the only rank of a world is a child of this process."""
    return serve(plan, settings_of_replica(plan, replica), frozenset(plan.asked_sampling), start)


def settings_of_replica(plan: Plan, replica: int) -> Serving:
    """Replicas may stand on one machine, so each has the port behind that of the one before, but in pods, whose addresses
    are their own. Raises Refused."""
    if plan.serving is None:
        found, fix = "it holds no serving settings", "deepinfer launch task.run=serve … out=DIR"
        raise Refused([Problem(asked="a plan whose task is serve", found=found, fix=fix, code=ExitCode.PLAN)])
    port = plan.serving.port
    return plan.serving if foreign().own_address else structs.replace(plan.serving, port=port + replica if port else 0)
