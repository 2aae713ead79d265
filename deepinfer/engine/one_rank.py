"""Several ranks on devices are planned and not run by this version: what to type instead, so that the next try works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.facts import is_chip
from deepinfer.config.quoting import plan_line
from deepinfer.config.runnable import ONE_RANK_ON, SEVERAL_ON_CPUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deepinfer.config.facts import Facts
    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan

TRUE_SIZE, SMALL = (
    "v41_flash",
    "v41_tiny",
)  # the released model, which no single device holds, and the one that all hold
TIMED = "task.slice=rank model.weights=dummy parallel=ep64"


def of_a_run(problems: Sequence[Problem], spec: Spec, facts: Facts, overrides: Sequence[str]) -> list[Problem]:
    """What stands against a plan, for somebody who wants to run it: a model that needs several devices is not answered with
    several of them. `overrides` as typed."""
    chip = spec.hardware if isinstance(spec.hardware, Chip) else facts.chip
    if (
        chip is None
        or chip.kind == "virtual"
        or chip.kind not in ONE_RANK_ON
        or spec.executor.kind == "simulated"
        or not any(map(_spreads, problems))
    ):
        return list(problems)
    missing = list(_missing(chip, facts, overrides))
    return [
        *(
            _in_one_rank(problem, spec, not missing, overrides) if _spreads(problem) else problem
            for problem in problems
        ),
        *missing,
    ]


def words(plan: Plan, *more: str) -> str:
    """Overrides that make a run of one rank of a plan of several; `more` are needed besides."""
    roles = plan.layout.roles
    found = ["deploy=colocated"] if len(roles) > 1 else []
    found += more
    if any(role.num_ranks > 1 for role in roles):
        found += ["parallel=single", *([f"model={SMALL}"] if plan.model.name == TRUE_SIZE else [])]
    return " ".join(found)


def _spreads(problem: Problem) -> bool:
    """Whether more ranks are what is proposed."""
    words = problem.fix.split()
    return problem.code is ExitCode.MEMORY and any(word.startswith(("parallel", "deploy.")) for word in words)


def _in_one_rank(problem: Problem, spec: Spec, here: bool, overrides: Sequence[str]) -> Problem:
    """On a machine without the device only a plan works; with it, the small model, or one rank of the true one timed."""
    own = any(word.startswith("model.path=") for word in overrides)
    fix = plan_line(overrides, *problem.fix.split())
    why = f"{problem.why}; {SEVERAL_ON_CPUS}, and {problem.fix} can be planned"
    if here and spec.task.kind == "bench":
        fix, why = TIMED, f"{SEVERAL_ON_CPUS}; one of 64 that share the model can be timed"
    elif here and not own and problem.asked.startswith(f"model={TRUE_SIZE} "):
        why = f"{why} (deepinfer plan), one of 64 ranks timed (deepinfer bench {TIMED})"
        fix = f"model={SMALL}"
    return structs.replace(problem, why=why, fix=fix)


def _missing(chip: Chip, facts: Facts, overrides: Sequence[str]) -> Iterator[Problem]:
    devices = facts.machine.devices
    if chip.kind == "cpu" or any(is_chip(device, chip.name, chip.architecture.value) for device in devices):
        return
    found = f"this machine has {f'{len(devices)} × {devices[0].name}' if devices else 'no accelerator'}"
    fix = f"hardware=cpu{f' model={SMALL}' if f'model={TRUE_SIZE}' in overrides else ''}"
    asked = next((word for word in overrides if word.startswith("hardware=")), chip.name)
    yield Problem(asked=asked, found=found, why="a run needs one", fix=fix, code=ExitCode.DEVICE)
