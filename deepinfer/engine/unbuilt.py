"""What a plan asks for and this version has no code for: refused by name, all of it at once, before any weight is read."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from deepinfer.plan.types import Plan

DEVICE_SEAMS = ("weights", "ops", "expert_dispatch", "model", "cache", "sampler")  # which a simulation replaces


def refuse_unbuilt(plan: Plan, *, simulated: bool) -> None:
    """Everything in the plan that has no code to run it, all at once."""
    problems = [
        _unbuilt(node.option or node.name, f"{node.implementation.partition(':')[0]} is not in this version")
        for node in plan.graph
        if node.implementation
        and not (simulated and node.seam in DEVICE_SEAMS)
        and not _exists(node.implementation.partition(":")[0])
    ]
    if plan.layout.num_ranks > 1:
        problems.append(_unbuilt(f"{plan.layout.num_ranks} ranks", "this version runs one", "parallel=single"))
    if plan.scheduler.async_depth:
        problems.append(
            _unbuilt(
                f"scheduler.async_depth={plan.scheduler.async_depth}", "only 0 is built", "scheduler.async_depth=0"
            )
        )
    if plan.hardware.kind != "cpu" and not simulated and not problems:
        problems.append(_unbuilt(f"hardware={plan.hardware.option}", "only CPUs are built", "hardware=cpu"))
    if problems:
        raise Refused(problems)


def _unbuilt(asked: str, found: str, fix: str = "") -> Problem:
    return Problem(asked=asked, found=found, why="it can be planned, not yet run", fix=fix, code=ExitCode.OTHER)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
