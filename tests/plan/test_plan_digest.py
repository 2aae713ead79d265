"""What a digest covers, and what it must not cover."""

from collections.abc import Callable

import pytest

from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")

# override → whether the ranks' digest and the numerics' digest change
CHANGES = [
    ("model.numerics=kv", True, True),
    ("model.dtype=float64", True, True),
    ("model.threads=2", True, True),
    ("replay=mask", True, True),
    ("scheduler.max_num_seqs=8", True, False),
    ("speculation=ngram", True, False),
    ("cache.num_blocks=99", True, False),
    ("parallel=dp2", True, False),
    ("serving.port=9", False, False),
    ("sampling.temperature=0.5", False, False),
    ("workload=agentic", False, False),
    ("launcher=slurm", False, False),
]


@pytest.mark.parametrize(("override", "ranks", "numerics"), CHANGES, ids=[override for override, _, _ in CHANGES])
def test_digests_cover_what_they_say(plan_of: PlanOf, override: str, ranks: bool, numerics: bool) -> None:
    before, after = plan_of(*TINY), plan_of(*TINY, override)
    assert (before.rank_digest != after.rank_digest) is ranks
    assert (before.numerics_digest != after.numerics_digest) is numerics


def test_digests_do_not_cover_the_machine(plan_of: PlanOf, machine: type) -> None:
    here, there = plan_of(*TINY), plan_of(*TINY, on=machine(cores=64, memory_gib=500, python="3.13.1"))
    assert (here.rank_digest, here.numerics_digest) == (there.rank_digest, there.numerics_digest)


def test_digests_follow_the_weights(plan_of: PlanOf) -> None:
    flash = ("hardware=gb300", "parallel=ep8", "model=v41_flash")
    released, pinned = plan_of(*flash), plan_of(*flash, "model.revision=abc123")
    assert released.numerics_digest != pinned.numerics_digest
    assert pinned.model.location == "deepseek-ai/DeepSeek-V4.1-Flash-1017@abc123"


def test_a_plan_travels_as_json(plan_of: PlanOf) -> None:
    for overrides in (TINY, ("hardware=gb300", "parallel=ep64", "speculation=dspark", "replay=compact")):
        plan = plan_of(*overrides)
        assert Plan.from_json(plan.to_json()) == plan


def test_equal_spec_and_facts_give_equal_plans(plan_of: PlanOf) -> None:
    assert plan_of(*TINY).to_json() == plan_of(*TINY).to_json()
