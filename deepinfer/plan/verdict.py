"""One line above everything: what a plan answers to the three questions how fast, does it fit, does it run."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.runnable import NOT_BUILT, unbuilt
from deepinfer.config.specs import Spec
from deepinfer.plan.quantities import amount, duration
from deepinfer.plan.render_cost import Row
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.types import Plan


def verdict(plan: Plan) -> Iterator[Row]:
    """Headline figures with their label, that the plan fits, and what of it this version cannot run."""
    runs = (
        "this version runs it"
        if not plan.unbuilt
        else f"can be planned only: no code yet for {', '.join(plan.unbuilt)}"
    )
    yield "verdict", "; ".join([*_figures(plan), "fits", runs])


def _figures(plan: Plan) -> Iterator[str]:
    cost = plan.cost
    if not cost.headline:
        yield "no figures: see cost"
        return
    user, gpu, first = (cost.figure(name) for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "ttft_s"))
    rates = f"{amount(user.value)} tokens/s a user, {amount(gpu.value)} a rank with prompts"
    yield f"{rates}, first token after {duration(first.value)} ({gpu.said})"


def planned_only(spec: Spec, roles: tuple[RoleCase, ...]) -> tuple[str, ...]:
    """What of a plan has no code behind it in this version, as overrides; the command that was typed aside."""
    found = [problem.asked for problem in unbuilt(spec) if not _is_told_otherwise(problem)]
    kinds = dict.fromkeys(role.chip.kind for role in roles if role.chip.kind in NOT_BUILT["hardware.kind"])
    return (*(f"hardware of kind {kind}" for kind in kinds), *found)


def _is_told_otherwise(problem: Problem) -> bool:
    return problem.asked.startswith(("task=", "hardware="))
