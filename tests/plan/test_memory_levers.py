"""A refusal for memory names settings and what each changes; typed, they change just that."""

import re
from collections.abc import Callable

import pytest

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
LEVER = re.compile(r"([^,()]+) \(-([0-9.]+) GB\)")
EP8 = ("hardware=h200", "parallel=ep8")
CASES = {
    "one rank": ("hardware=h200",),
    "tables go to the devices": ("hardware=h100", "parallel=ep4"),
    "tables stay": ("hardware=h200", "parallel=ep4", "parallel.engram=sharded", "speculation=dspark"),
    "many sequences": (*EP8, "scheduler.max_num_batched_tokens=65536", "scheduler.max_num_seqs=32768"),
    "large steps": (*EP8, "scheduler.max_num_batched_tokens=8388608"),
    "degrees of one's own": ("hardware=h200", "parallel.attention_dp=4", "parallel.context=2", "parallel.expert=2"),
    "a role": (
        "hardware=h100",
        "deploy=disaggregated",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep8",
    ),
    "drafts on a chip with little": ("hardware=h100", "parallel=ep4", "speculation=dspark"),
}


def problem_of(plan_of: PlanOf, *overrides: str) -> Problem:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*overrides)
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.MEMORY
    return problem


def held(plan_of: PlanOf, role: str, *overrides: str) -> float:
    """GB that the fullest rank of a role holds before its first cache block, whether that fits or not."""
    try:
        plan = plan_of(*overrides)
    except PlanErrors as refused:
        wanted = [text for problem in refused.problems for text in [f"{problem.asked} {problem.found}"] if role in text]
        return max(float(found) for found in re.findall(r"would hold ([0-9.]+) GB", "".join(wanted)))
    tables = [memory for memory in plan.memory if memory.role == role or not role]
    pools = [sum(item.num_bytes for item in memory.items if item.name == "kv_pool") for memory in tables]
    return max(memory.device_bytes - pool for memory, pool in zip(tables, pools, strict=True)) / 1e9


def told_levers(problem: Problem) -> list[tuple[str, float]]:
    """Settings and the GB that they save, from the message."""
    _, _, text = problem.why.partition("a rank would hold less with ")
    return [(typed.strip(), float(saved)) for typed, saved in LEVER.findall(text)]


def replaced(overrides: tuple[str, ...], typed: str) -> list[str]:
    """The overrides with a setting of a message in the place of what it replaces."""
    new = typed.split()
    keys = {text.partition("=")[0] for text in new}
    return [*(text for text in overrides if text.partition("=")[0] not in keys), *new]


@pytest.mark.parametrize("case", CASES)
def test_each_setting_saves_what_it_says(plan_of: PlanOf, case: str) -> None:
    overrides = CASES[case]
    problem = problem_of(plan_of, *overrides)
    role = "prefill" if "prefill side" in problem.asked else ""
    before = held(plan_of, role, *overrides)
    told = told_levers(problem)
    assert 1 <= len(told) <= 3, problem
    assert [saved for _, saved in told] == sorted((saved for _, saved in told), reverse=True)
    for typed, saved in told:
        after = held(plan_of, role, *replaced(overrides, typed))
        assert before - after == pytest.approx(saved, abs=0.16), typed  # three numbers rounded to 0.1


@pytest.mark.parametrize("case", CASES)
def test_the_cure_fits(plan_of: PlanOf, case: str) -> None:
    overrides = CASES[case]
    assert plan_of(*replaced(overrides, problem_of(plan_of, *overrides).fix))


def test_all_parts_and_what_is_left_are_named(plan_of: PlanOf) -> None:
    problem = problem_of(plan_of, *CASES["tables stay"])
    for part in ("experts 72.2", "engram 50.7", "dense 7.3", "draft", "workspace", "state"):
        assert part in problem.found
    assert "may be used, so no token fits" in problem.why
    pool = problem_of(plan_of, "hardware=h200", "parallel=ep8", "cache.num_blocks=999999")
    left = re.search(r"([0-9.]+) GB are left beside weights and state, ([0-9,]+) tokens of cache", pool.why)
    assert left
    most = plan_of("hardware=h200", "parallel=ep8", pool.fix)
    assert most.capacity.tokens == int(left[2].replace(",", ""))
    assert told_levers(pool)


def test_a_cache_of_a_given_size_has_no_settings_that_grow_it(plan_of: PlanOf) -> None:
    tiny = ("model=v41_tiny", "cache.num_blocks=10", "model.max_model_len=2048")
    assert "hold less" not in problem_of(plan_of, *tiny).why
    small = ("hardware=h100", "parallel=ep8", "scheduler.max_num_batched_tokens=8192", "cache.memory_bytes=1MB")
    assert "hold less" not in problem_of(plan_of, *small, "model.max_model_len=4096").why
