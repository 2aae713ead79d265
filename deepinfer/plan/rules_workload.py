"""Rules about the load that a plan is costed for."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.settle import Case


def traffic_is_told_once(case: Case) -> Iterator[Problem]:
    """Requests a second and tokens a day say the same thing, and the two may disagree."""
    workload = case.spec.workload
    if not isinstance(workload, SteadyWorkload):
        return
    if workload.requests_per_s is not None and workload.tokens_per_day is not None:
        yield plan_problem(
            f"workload.requests_per_s={workload.requests_per_s:g}",
            f"workload.tokens_per_day={workload.tokens_per_day:g} is given too",
            "each alone fixes the traffic",
            "workload.tokens_per_day=null",
        )
    if workload.tokens_per_day is None and workload.output_share != "auto":
        yield plan_problem(
            f"workload.output_share={workload.output_share:g}",
            "workload.tokens_per_day is not given",
            "the share divides the tokens of a day; without them the lengths of prompt and answer fix it",
            "workload.output_share=auto",
        )


def steps_yield_what_they_check(case: Case) -> Iterator[Problem]:
    """A step yields at most the token it computes and the drafts that it checks."""
    workload, drafting = case.spec.workload, case.drafting
    most = 1 + (drafting.verify_length or drafting.depth)
    if not isinstance(workload, SteadyWorkload) or workload.accepted_tokens == "auto":
        return
    if workload.accepted_tokens > most:
        checked = f"a step checks {most - 1} draft{'s' * (most != 2)}" if most > 1 else "nothing is drafted"
        yield plan_problem(
            f"workload.accepted_tokens={workload.accepted_tokens:g}",
            f"{checked} with speculation={drafting.kind}",
            f"so it yields at most {most}",
            "workload.accepted_tokens=auto",
        )
