"""What a plan says would make it faster does: the advised overrides are planned, and give what was promised."""

import re
from collections.abc import Callable

import pytest

from deepinfer.plan.cost.candidates import KEPT_ROWS
from deepinfer.plan.cost.room import DRAFT_DEPTH
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
ADVICE = re.compile(
    r"(?P<override>[^;]+?): (?P<before>[\d,.]+(?: [kM])?) → (?P<after>[\d,.]+(?: [kM])?) tokens/s a rank"
)
SCALE = {"": 1, "k": 1e3, "M": 1e6}
CASES = {
    "experts": "hardware=h200 parallel=ep8",
    "cache_full": "hardware=h200 parallel=ep8 scheduler.max_num_seqs=1024 workload.prompt_tokens=100000",
    "drafts": "hardware=gb300 parallel=ep4 speculation=dspark scheduler.max_num_seqs=128 scheduler.max_num_batched_tokens=8192",
    "network": "hardware=h200 parallel=ep64 scheduler.max_num_seqs=512",
    "little_memory": "hardware=h100 parallel=ep8",
    "steps_too_short_for_drafts": "hardware=b200 parallel=ep8 workload.prompt_tokens=200000 "
    "scheduler.max_num_seqs=2048 scheduler.max_num_batched_tokens=4096",
    "users": "hardware=gb300 parallel=ep64 workload.tokens_per_s_per_user=60",
    "two_roles": "hardware=gb300 deploy=disaggregated parallel@deploy.prefill.parallel=ep4 "
    "parallel@deploy.decode.parallel=ep8 scheduler.max_num_seqs=64",
}


def advised(moves: str) -> list[tuple[list[str], float, float]]:
    """Overrides and both figures of every advice in a clause."""
    found = [ADVICE.fullmatch(part.partition(" (")[0]) for part in moves.split("; or ")]
    return [(m["override"].split(), number(m["before"]), number(m["after"])) for m in found if m]


def number(text: str) -> float:
    digits, _, unit = text.replace(",", "").partition(" ")
    return float(digits) * SCALE[unit]


@pytest.mark.parametrize("cost", ["roofline", "calibrated"])
@pytest.mark.parametrize("name", CASES)
def test_advice_gives_a_rank_what_it_promises(plan_of: PlanOf, name: str, cost: str):
    base = (*CASES[name].split(), "model=v41_flash", f"cost={cost}")
    plan = plan_of(*base)
    pairs = [
        (plan.cost.prefill, lambda other: other.cost.prefill.tokens_per_s_per_gpu[-1]),
        (plan.cost.decode, lambda other: other.cost.decode.point.tokens_per_s_per_gpu[-1]),
    ]
    for phase, rate in pairs:
        assert phase.moves
        for overrides, before, after in advised(phase.moves):
            assert rate(plan) == pytest.approx(before, rel=0.006)
            assert after > before
            assert rate(plan_of(*base, *overrides)) == pytest.approx(after, rel=0.006), overrides


def test_every_case_is_a_case(plan_of: PlanOf):
    """The cases above do get advice of every kind."""
    plans = [plan_of(*words.split(), "model=v41_flash", "cost=roofline") for words in CASES.values()]
    found = [advised(phase.moves) for plan in plans for phase in (plan.cost.prefill, plan.cost.decode)]
    keys = {overrides[0].partition("=")[0] for advice in found for overrides, _, _ in advice}
    assert {"speculation", "scheduler.max_num_seqs", "parallel", "parallel.expert", "replay"} <= keys
    assert any(len(overrides) == 2 for advice in found for overrides, _, _ in advice)


def test_more_seats_are_no_advice_where_users_set_the_limit(plan_of: PlanOf):
    base = ("hardware=h200", "parallel=ep8", "workload.tokens_per_s_per_user=60", "cost=calibrated")
    decode = plan_of(*base).cost.decode
    assert (decode.limit, decode.most_sequences) == ("user", 32)
    assert "max_num_seqs" not in decode.moves
    found = re.search(r"speculation=dspark: [\d.]+ → ([\d.]+) tokens/s a user", decode.moves)
    count = decode.point.sequences
    drafting = plan_of(*base[:2], "cost=calibrated", "speculation=dspark", f"scheduler.max_num_seqs={count}")
    assert drafting.cost.figure("tokens_per_s_per_user").value == pytest.approx(float(found[1]), rel=0.006)


def test_a_rate_out_of_reach_is_not_helped_by_more_rows(plan_of: PlanOf):
    plan = plan_of("hardware=gb300", "parallel=ep64", "speculation=dspark", "workload.tokens_per_s_per_user=5000")
    assert plan.cost.decode.limit == "user"
    assert "rows" not in plan.cost.decode.moves and "max_num" not in plan.cost.decode.moves


def test_a_full_cache_is_named_and_not_the_scheduler(plan_of: PlanOf):
    base = ("hardware=b200", "parallel=ep8", "workload.prompt_tokens=200000", "scheduler.max_num_seqs=2048")
    decode = plan_of(*base, "scheduler.max_num_batched_tokens=4096", "cost=calibrated").cost.decode
    assert decode.limit == "cache"
    assert decode.most_sequences < decode.asked_sequences == 2048
    assert "max_num_seqs" not in decode.moves and "shorter requests or more memory" in decode.moves


def test_sites_are_not_told_to_grow(plan_of: PlanOf):
    alone = plan_of("cluster=h200_node", "cost=roofline", "speculation=none")
    free = plan_of("hardware=h200", "parallel=ep8", "model=v41_flash", "cost=roofline", "scheduler.max_num_seqs=1024")
    assert "parallel=ep16" not in alone.cost.decode.moves
    assert free.cost.decode.moves


def test_what_is_tried_is_what_the_option_files_say(spec_of: Callable):
    assert spec_of("replay=compact").replay.keep_tokens == KEPT_ROWS
    assert spec_of("speculation=dspark").speculation.depth == DRAFT_DEPTH
