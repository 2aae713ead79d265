"""More devices than this machine has are planned and not run: what to type instead, so that the next try works."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.facts import is_chip
from deepinfer.config.quoting import plan_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.config.facts import Facts
    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan

TRUE_SIZE, SMALL = (
    "v41_flash",
    "v41_tiny",
)  # the released model, which no single device holds, and the one that all hold
MOST_PROCESSES = 8  # that a machine is asked to take turns with
EXPERTS, DRAFT_EXPERTS = 8, 4  # of a layer of SMALL
PROPOSED = re.compile(r"^parallel(?:\.\w+)?=[a-z]*(\d+)$")  # how many ranks
TIMED = "task.slice=rank model.weights=dummy parallel=ep64"


def of_a_run(problems: Sequence[Problem], spec: Spec, facts: Facts, overrides: Sequence[str]) -> list[Problem]:
    """What stands against a plan, for somebody who wants to run it: a model that needs several devices is not answered with
    more of them than there are. `overrides` as typed."""
    chip = spec.hardware if isinstance(spec.hardware, Chip) else facts.chip
    if chip is None or chip.kind in ("cpu", "virtual") or spec.executor.kind == "simulated":
        return list(problems)
    here = sum(is_chip(device, chip.name, chip.architecture.value) for device in facts.machine.devices)
    far = [_spreads(problem) and _proposed(problem) > here for problem in problems]
    if not any(far):
        return list(problems)
    missing = [] if here else [_missing(chip, facts, overrides)]
    return [
        *(_in_one_rank(one, spec, here, overrides) if apart else one for one, apart in zip(problems, far)),
        *missing,
    ]


def words(plan: Plan, *more: str) -> str:
    """Overrides that make a run here of a plan of several ranks; `more` are needed besides. On CPUs (hardware=cpu among them)
    the layout stays where processes of one machine can take it, elsewhere one rank is left."""
    roles = plan.layout.roles
    found = ["deploy=colocated"] if len(roles) > 1 else []
    found += more
    if any(role.num_ranks > 1 for role in roles):
        layout = _layout_words(plan) if "hardware=cpu" in more else ""
        found += [*([f"model={SMALL}"] if plan.model.name == TRUE_SIZE else []), layout or "parallel=single"]
    return " ".join(found)


def _layout_words(plan: Plan) -> str:
    """The layout of a plan, as processes of one machine take it; empty where they do not."""
    role, *others = plan.layout.roles
    drafts = any(node.name == "drafter" and node.option.startswith("speculation=dspark") for node in plan.graph)
    experts = DRAFT_EXPERTS if drafts and not role.redundant_experts else EXPERTS + role.redundant_experts
    small = plan.model.name == TRUE_SIZE and experts % role.expert
    if others or role.replicas > 1 or role.num_ranks > MOST_PROCESSES or small:
        return ""
    degrees = {"attention_dp": role.attention_dp, "context": role.context, "expert": role.expert}
    if degrees == {"attention_dp": role.expert, "context": 1, "expert": role.expert}:
        return f"parallel=ep{role.expert}"
    if sum(degrees.values()) == 4 and role.expert == 1:
        return "parallel=dp2" if role.attention_dp == 2 else "parallel=cp2"
    return " ".join(f"parallel.{name}={degree}" for name, degree in degrees.items() if degree > 1)


def _spreads(problem: Problem) -> bool:
    """Whether more ranks are what is proposed."""
    words = problem.fix.split()
    return problem.code is ExitCode.MEMORY and any(word.startswith(("parallel", "deploy.")) for word in words)


def _proposed(problem: Problem) -> int:
    """How many ranks are; more than any machine has where the proposal does not say."""
    found = [int(match[1]) for word in problem.fix.split() if (match := PROPOSED.match(word))]
    return max(found, default=1 << 30)


def _in_one_rank(problem: Problem, spec: Spec, here: int, overrides: Sequence[str]) -> Problem:
    """On a machine without the device only a plan works; with too few, the small model, or one rank of the true one timed."""
    own = any(word.startswith("model.path=") for word in overrides)
    fix = plan_line(overrides, *problem.fix.split())
    few = f"{problem.fix} asks for more devices than this machine has"
    why = f"{problem.why}; {few}, and can be planned"
    if here and spec.task.kind == "bench":
        fix, why = TIMED, f"{few}; one of 64 ranks that share the model can be timed"
    elif here and not own and problem.asked.startswith(f"model={TRUE_SIZE} "):
        why = f"{why} (deepinfer plan), one of 64 ranks timed (deepinfer bench {TIMED})"
        fix = f"model={SMALL}"
    return structs.replace(problem, why=why, fix=fix)


def _missing(chip: Chip, facts: Facts, overrides: Sequence[str]) -> Problem:
    devices = facts.machine.devices
    found = f"this machine has {f'{len(devices)} × {devices[0].name}' if devices else 'no accelerator'}"
    fix = f"hardware=cpu{f' model={SMALL}' if f'model={TRUE_SIZE}' in overrides else ''}"
    asked = next((word for word in overrides if word.startswith("hardware=")), chip.name)
    return Problem(asked=asked, found=found, why="a run needs one", fix=fix, code=ExitCode.DEVICE)
