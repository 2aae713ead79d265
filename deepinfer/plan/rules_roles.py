"""Rules about a deployment of two roles: settings that no role reads, and chips that do not go together."""

from collections.abc import Iterator, Mapping

from deepinfer.config.chips import SameHardware
from deepinfer.config.errors import Problem
from deepinfer.config.specs import Disaggregated, Parallel
from deepinfer.plan.digest import rounding
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.roles import hardware_key, key_of
from deepinfer.plan.settle import Case
from deepinfer.plan.types import OpChoice

SIDES = ("prefill", "decode")
UNTOUCHED = Parallel(attention_dp=1, context=1, expert=1, redundant_experts=0, engram="auto")  # parallel=single
UNTOUCHED_CHIP = "cpu"  # the option of hardware that conf/config.yaml takes


def _together(name: str, parallel: Parallel) -> tuple[str, ...]:
    """Degrees that only work side by side: experts are spread over ranks, which attention_dp has to make."""
    alone = name == "expert" and parallel.attention_dp * parallel.context < parallel.expert
    return ("attention_dp", "expert") if alone else (name,)


def parallel_belongs_to_a_side(case: Case) -> Iterator[Problem]:
    """With two sides nobody reads the degrees of the top level: each side has its own."""
    parallel, option = case.spec.parallel, case.choices.get("parallel", "single")
    if not isinstance(case.spec.deploy, Disaggregated) or (option == "single" and parallel == UNTOUCHED):
        return
    found = "deploy=disaggregated lays out each side by itself"
    why = "no rank would read the top level's degrees"
    if option != "single":
        fix = " ".join(f"parallel@{key_of(side)}={option}" for side in SIDES)
        yield plan_problem(f"parallel={option}", found, why, f"parallel=single {fix}")
    base = parallel if option != "single" else UNTOUCHED
    for name in Parallel.__struct_fields__:
        value = getattr(parallel, name)
        if value != getattr(base, name):
            fix = " ".join(f"{key_of(side)}.{other}={value}" for side in SIDES for other in _together(name, parallel))
            yield plan_problem(f"parallel.{name}={value}", found, why, fix)


def hardware_is_of_some_side(case: Case) -> Iterator[Problem]:
    """A chip at the top level that no side takes."""
    deploy, option = case.spec.deploy, case.choices.get("hardware", UNTOUCHED_CHIP)
    if not isinstance(deploy, Disaggregated) or option == UNTOUCHED_CHIP:
        return
    if not any(isinstance(side.hardware, SameHardware) for side in (deploy.prefill, deploy.decode)):
        found = "each side of deploy=disaggregated names a chip of its own"
        fix = f"hardware@{hardware_key('prefill')}=same"
        yield plan_problem(f"hardware={option}", found, "no rank would run on the top level's", fix)


def reproducible_is_one_kind_of_op(case: Case, ops: Mapping[str, tuple[OpChoice, ...]]) -> Iterator[Problem]:
    """Which side computes a token's keys depends on what was preempted when, so both must round alike."""
    first, *others = (rounding(role.chip.architecture.value, ops[role.name]) for role in case.roles)
    if case.numerics.reproducible and any(other != first for other in others):
        found = " and ".join(f"{role.name} on {role.chip.name}" for role in case.roles)
        why = "their ops round differently, and a preempted answer is prefilled again by the other side"
        fix = f"hardware@{hardware_key('decode')}=same"
        yield plan_problem("sampling.reproducible=true", found, why, fix)
