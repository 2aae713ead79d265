"""One line above everything: what a plan answers to the three questions how fast, does it fit, does it run."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.fused import fused_problems, runs_fused
from deepinfer.config.runnable import many_ranks, plan_only, unbuilt
from deepinfer.plan.quantities import amount, duration
from deepinfer.plan.render_cost import Row
from deepinfer.plan.settle import Case
from deepinfer.plan.types import Layout, Plan


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


def planned_only(case: Case, layout: Layout) -> tuple[str, ...]:
    """What of a plan has no code behind it in this version, as overrides; the command that was typed aside."""
    found = [problem.asked for problem in unbuilt(case.spec) if not _is_told_otherwise(problem)]
    chips = [(role.hardware.kind, role.hardware.architecture) for role in layout.roles]
    kinds = [*(kind for kind, _ in chips), *(["virtual"] if case.executor == "simulated" else [])]
    found += [problem.asked for problem in many_ranks(case.spec.parallel.num_ranks, kinds, "")]
    for role, chip in zip(layout.roles, chips, strict=True):
        if runs_fused(*chip):
            backends = {choice.op: choice.backend for choice in role.ops}
            found += [problem.asked for problem in fused_problems(backends, case.numerics.numerics)]
    lacking = {"hardware.kind": "kind {}", "hardware.architecture": "architecture {1}"}
    said = {plan_only(*chip): chip for chip in chips if plan_only(*chip)}
    return (*(f"hardware of {lacking[key].format(*chip)}" for key, chip in said.items()), *dict.fromkeys(found))


def _is_told_otherwise(problem: Problem) -> bool:
    return problem.asked.startswith(("task=", "hardware=", "hardware:"))
