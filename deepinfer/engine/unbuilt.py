"""What a plan asks for and this version has no code for: refused by name, all of it at once, before any weight is read."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.fused import fused_problems, runs_fused
from deepinfer.config.quoting import launch_line
from deepinfer.config.runnable import (
    INSTEAD,
    launched,
    many_ranks,
    not_built,
    plan_only,
    unbuilt,
)
from deepinfer.engine.one_rank import words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan, RolePlan

DEVICE_SEAMS = ("weights", "ops", "expert_dispatch", "model", "cache", "sampler")  # which a simulation replaces


def refuse_to_run(
    plan: Plan,
    spec: Spec,
    lacks: str | None,
    libraries: Sequence[Problem] = (),
    here: bool = False,
    overrides: Sequence[str] = (),
) -> None:
    """Raise Refused for a plan that this machine or this version cannot run; `lacks` and `here` as for `device_problem`,
    `libraries` of `plan.prerequisites.missing_libraries`, `overrides` as typed."""
    device = device_problem(plan, lacks, here)
    problems = [device] if device else run_problems(plan, spec, libraries, overrides)
    if problems:
        raise Refused(problems)


def run_problems(
    plan: Plan, spec: Spec, libraries: Sequence[Problem] = (), overrides: Sequence[str] = ()
) -> list[Problem]:
    """The same where the device is there. A simulation needs neither code for a device nor libraries."""
    if is_simulated(plan):
        return launched(spec, overrides)
    elsewhere = launched(spec, overrides) or _elsewhere(plan, overrides)
    return [*elsewhere, *unbuilt(spec), *_many_ranks(plan), *_fused(plan), *libraries]


def refuse_unbuilt(plan: Plan) -> None:
    """Everything in the plan that has no code to run it, all at once. Raises Refused."""
    simulated = is_simulated(plan)
    found: dict[str, Problem] = {}  # group → what is missing of it
    for problem in _many_ranks(plan):
        found["parallel"] = problem
    for node in plan.graph:
        replaced = simulated and node.seam in DEVICE_SEAMS
        if node.implementation and not replaced and not _exists(node.implementation.partition(":")[0]):
            asked = node.option or node.name
            group = asked.partition("=")[0]
            found.setdefault(group, not_built(asked, INSTEAD.get(f"{group}.kind", "")))
    for chip in [role.hardware for role in plan.layout.roles] if not (found or simulated) else ():
        if key := plan_only(chip.kind, chip.architecture):
            found["hardware"] = not_built(f"hardware={chip.option}", INSTEAD[key])
    problems = [*found.values(), *([] if simulated else _fused(plan))]
    if problems:
        raise Refused(problems)


def _many_ranks(plan: Plan) -> list[Problem]:
    """Several ranks where a run takes one: on a device, or in a simulation."""
    count, kinds = plan.layout.num_ranks, [role.hardware.kind for role in plan.layout.roles]
    if not is_simulated(plan) or count == 1:
        return many_ranks(count, kinds, words(plan))
    asked, why = f"parallel: {count} ranks", "what ranks exchange has no simulation; it can be planned"
    return [Problem(asked=asked, found="a simulation is of one rank", why=why, fix=words(plan), code=ExitCode.OTHER)]


def _elsewhere(plan: Plan, overrides: Sequence[str]) -> list[Problem]:
    """Ranks on several nodes: a command starts those of its own machine only."""
    if plan.layout.num_nodes == 1:
        return []
    found = f"the plan's {plan.layout.num_ranks} ranks stand on {plan.layout.num_nodes} nodes"
    why, fix = "this command runs on one machine", launch_line(overrides, "launcher=torchrun")
    asked = f"hardware.node_devices={plan.hardware.node_devices}"
    return [Problem(asked=asked, found=found, why=why, fix=fix, code=ExitCode.PLAN)]


def _fused(plan: Plan) -> list[Problem]:
    """What fused operations cannot carry out of it."""
    roles = [role for role in plan.layout.roles if runs_fused(role.hardware.kind, role.hardware.architecture)]
    found = [_of_role(role, plan) for role in roles]
    return list(dict.fromkeys(problem for problems in found for problem in problems))


def _of_role(role: RolePlan, plan: Plan) -> Iterator[Problem]:
    backends = {choice.op: choice.backend for choice in role.ops}
    return fused_problems(backends, plan.numerics.numerics)


def device_problem(plan: Plan, lacks: str | None, here: bool = False) -> Problem | None:
    """The refusal of a plan for devices that are not here; `lacks` is the sentence of `plan.require.missing`, None where
    nothing is missing or the plan is simulated. `here`: one device of each kind is, and more are lacking."""
    if lacks is None or is_simulated(plan):
        return None
    chips = [role.hardware for role in plan.layout.roles]
    chip = next((chip for chip in chips if chip.kind != "cpu"), chips[0])
    found = [lacks.removesuffix(".")]
    if plan_only(chip.kind, chip.architecture):
        found.append(f"and this version has no code for {chip.name} yet")
    told = ", ".join([*found, "so it was planned and not run"])
    fix = words(plan, *([] if here else ["hardware=cpu"]))
    return Problem(asked=f"hardware={chip.option}", found=told, fix=fix, code=ExitCode.DEVICE)


def is_simulated(plan: Plan) -> bool:
    """Whether the plan decided that a model of a device answers instead of one."""
    return any(node.name == "executor" and node.implementation.endswith(":SimulatedExecutor") for node in plan.graph)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
