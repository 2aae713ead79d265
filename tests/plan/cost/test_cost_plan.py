"""What a plan says about its cost: figures by name, curves that behave, words for what is missed."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from deepinfer.plan import render
from deepinfer.plan.cost.acceptance import GOLDEN_CHANCE, geometric, yield_of
from deepinfer.plan.types import Plan, PlanErrors

HEADLINE = [
    "prefill_tokens_per_s_per_gpu",
    "prompt_tokens_per_s_per_gpu",
    "decode_tokens_per_s_per_gpu",
    "tokens_per_s_per_user",
    "tokens_per_s_per_gpu",
    "ttft_s",
]
SPLIT = (
    "hardware=gb300",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep64",
    "speculation=dspark",
    "replay=compact",
    "scheduler.max_num_seqs=256",
    "scheduler.max_num_batched_tokens=8192",
)
PlanOf = Callable[..., Plan]


@pytest.fixture
def plan_of(plan_of: PlanOf) -> PlanOf:
    """Plans by the roofline, unless a test asks for something else: figures that follow from data sheets alone."""
    return lambda *overrides: plan_of("cost=roofline", *overrides)


def figures(plan: Plan) -> dict[str, float]:
    return {figure.name: figure.value for figure in plan.cost.headline}


def cost_lines(plan: Plan, section: str = "cost") -> list[str]:
    return [line for line in render.text(plan).splitlines() if line.startswith(f"{section} ")]


@pytest.mark.parametrize(
    "overrides",
    [(), ("hardware=h200", "parallel=ep8"), ("hardware=ascend950dt", "parallel=ep64"), SPLIT, ("parallel=dp2",)],
)
def test_every_plan_has_a_cost_that_travels(plan_of: PlanOf, overrides: tuple[str, ...]):
    plan = plan_of(*overrides)
    assert list(figures(plan)) == HEADLINE
    assert all(0 < value < 1e9 for value in figures(plan).values())
    assert {figure.label for figure in plan.cost.headline} == {"roofline"}
    assert Plan.from_json(plan.to_json()) == plan
    ends = plan.cost.tradeoff[-1]  # no rate is asked for: the plan runs as many sequences as it can
    assert [each.sequences for each in plan.cost.tradeoff] == sorted({each.sequences for each in plan.cost.tradeoff})
    assert (ends.tokens_per_s_per_user, ends.tokens_per_s_per_gpu) == (
        figures(plan)["tokens_per_s_per_user"],
        figures(plan)["tokens_per_s_per_gpu"],
    )
    told = [
        line for line in cost_lines(plan) if ("tokens/s" in line or "ms a step: " in line) and "sequences ×" not in line
    ]
    assert told and all("(roofline)" in line for line in told)


def test_costs_are_no_part_of_a_digest(plan_of: PlanOf):
    chat, agents = (
        plan_of("hardware=h200", "parallel=ep8"),
        plan_of("hardware=h200", "parallel=ep8", "workload=agentic"),
    )
    assert figures(chat) != figures(agents)
    assert (chat.rank_digest, chat.numerics_digest) == (agents.rank_digest, agents.numerics_digest)


def test_more_sequences_give_a_rank_more_and_each_user_less(plan_of: PlanOf):
    curve = plan_of(*SPLIT).cost.decode.curve
    assert [point.sequences for point in curve] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    gpu = [point.tokens_per_s_per_gpu[0] for point in curve]
    user = [point.tokens_per_s_per_user[0] for point in curve]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(gpu))
    assert all(after < before for before, after in pairwise(user))


def test_the_point_is_the_most_that_keeps_users_content(plan_of: PlanOf):
    wanted = 600
    plan = plan_of(*SPLIT, f"workload.tokens_per_s_per_user={wanted}")
    decode = plan.cost.decode
    assert 64 < decode.point.sequences < 128
    assert decode.point.tokens_per_s_per_user[0] >= wanted
    one_more = decode.point.steps[0].time_s * (decode.point.sequences + 1) / decode.point.sequences  # compute-bound
    assert decode.accepted_tokens / one_more < wanted * 1.001
    assert not any(warning.startswith("workload.tokens_per_s_per_user") for warning in plan.warnings)


def test_expectations_that_are_missed_are_warned_of(plan_of: PlanOf):
    plan = plan_of(*SPLIT, "workload.tokens_per_s_per_user=100000", "workload.ttft_s=0.000001")
    assert plan.cost.decode.point.sequences == 1
    missed = [warning for warning in plan.warnings if "what helps" in warning]
    assert len(missed) == 2
    assert missed[0].startswith("workload.tokens_per_s_per_user=100000: a user alone on a rank gets 1.86")
    assert missed[1].startswith("workload.ttft_s=1e-06: the first token takes ")


def test_shared_ranks_take_turns(plan_of: PlanOf):
    plan = plan_of("hardware=gb200", "parallel=ep64")
    cost, found = plan.cost, figures(plan)
    prompt_s = cost.prefill.computed_tokens / found["prefill_tokens_per_s_per_gpu"]
    answer_s = 512 / found["decode_tokens_per_s_per_gpu"]
    assert cost.decode_share == pytest.approx(answer_s / (prompt_s + answer_s))
    assert found["tokens_per_s_per_user"] == pytest.approx(
        cost.decode.point.tokens_per_s_per_user[0] * cost.decode_share
    )
    assert found["tokens_per_s_per_gpu"] == pytest.approx(1536 / (prompt_s + answer_s))
    assert plan_of(*SPLIT).cost.decode_share == 1


def test_caches_travel_to_the_decode_side(plan_of: PlanOf):
    plan = plan_of(*SPLIT)
    prefill = plan.cost.prefill
    assert prefill.transfer_bytes == pytest.approx(1024 * 890 + plan.cache.state_bytes)
    assert "network" in prefill.link_bytes
    network = plan_of(*SPLIT, "cache=prefix", "workload.cached_share=0.999", "workload.prompt_tokens=100000")
    assert network.cost.prefill.steps[0].bound == "link network"


def test_hits_are_not_computed_but_counted(plan_of: PlanOf):
    hits = ("workload.cached_share=0.75", "workload.prompt_tokens=8000")
    plan = plan_of("hardware=gb200", "parallel=ep64", "cache=prefix", *hits)
    assert plan.cost.prefill.computed_tokens == 2000
    found = figures(plan)
    assert found["prompt_tokens_per_s_per_gpu"] == pytest.approx(4 * found["prefill_tokens_per_s_per_gpu"])


def test_accepted_tokens_come_from_what_was_published():
    golden = yield_of("dspark", 5, 5, "auto")
    assert (golden.rows_each, golden.drafts, golden.accepted) == (6, 5, 3.51)
    assert "InferenceX" in golden.source
    lengths = [yield_of("dspark_fixed", 5, depth, "auto").accepted for depth in range(1, 6)]
    assert lengths == sorted(lengths)
    chance = lengths[0] - 1
    assert chance == pytest.approx(GOLDEN_CHANCE)
    assert geometric(chance, 5) == pytest.approx(3.51, abs=1e-5) and lengths[-1] == 3.51
    assert yield_of("none", 0, 0, "auto").accepted == 1
    looked_up = yield_of("ngram", 4, 4, "auto")
    assert (looked_up.rows_each, looked_up.drafts, looked_up.accepted) == (5, 0, 1.0)
    assert "workload.accepted_tokens" in looked_up.source
    assert yield_of("ngram", 4, 4, 2.5).accepted == 2.5


def test_drafts_that_are_never_right_cost(plan_of: PlanOf):
    base = ("hardware=gb200", "parallel=ep64", "scheduler.max_num_seqs=256")
    plain = figures(plan_of(*base))["decode_tokens_per_s_per_gpu"]
    useless = figures(plan_of(*base, "speculation=dspark", "workload.accepted_tokens=1.0"))
    golden = figures(plan_of(*base, "speculation=dspark"))
    assert useless["decode_tokens_per_s_per_gpu"] < plain
    assert golden["tokens_per_s_per_user"] > useless["tokens_per_s_per_user"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("workload.requests_per_s=1", "workload.tokens_per_day=1.0e+6"), "workload.tokens_per_day=1e+06 is given too"),
        (("workload.accepted_tokens=2",), "nothing is drafted with speculation=none; so it yields at most 1"),
        (("speculation=dspark", "workload.accepted_tokens=6.5"), "a step checks 5 drafts with speculation=dspark"),
        (("workload.output_share=0.5",), "workload.tokens_per_day is not given"),
    ],
)
def test_workloads_that_contradict_themselves(plan_of: PlanOf, overrides: tuple[str, ...], sentence: str):
    with pytest.raises(PlanErrors, match=sentence.replace("+", r"\+")) as caught:
        plan_of(*overrides)
    assert caught.value.exit_code == 3


def test_what_cannot_be_reckoned_is_said(plan_of: PlanOf):
    assert "nothing is reckoned or sized" in cost_lines(plan_of("workload=trace"))[0]
    long = plan_of("workload=long_context")
    assert "longer than model.max_model_len=4096" in cost_lines(long)[0]
    assert long.cost.headline == ()


def test_a_fleet_is_part_of_the_plan(plan_of: PlanOf):
    plan = plan_of(
        *SPLIT,
        "cache=prefix",
        "workload.tokens_per_day=155.0e12",
        "workload.cached_share=0.96",
        "workload.output_share=0.02",
    )
    fleet = plan.cost.fleet
    assert [need.role for need in fleet.needs] == ["prefill", "decode"]
    assert [need.ranks % size for need, size in zip(fleet.needs, (4, 64), strict=True)] == [0, 0]
    for need in fleet.needs:
        rate = figures(plan)[f"{need.role}_tokens_per_s_per_gpu"]
        assert need.ranks_exact == pytest.approx(need.tokens_per_s / rate)
        assert 0 < need.utilisation <= 1
    assert any("cached_share" in free for free in fleet.free)
    lines = cost_lines(plan, "fleet")
    assert sum(" workload.output_share=" in line for line in lines if line.startswith("fleet    if ")) == 4
    assert not cost_lines(plan_of(*SPLIT), "fleet")


def test_what_a_chip_lacks_is_said(plan_of: PlanOf):
    hopper = plan_of("hardware=h200", "parallel=ep8").cost.assumptions
    assert "NVIDIA H200 SXM has no f4_e2m1 peak: such products run in f8_e4m3" in hopper
    ascend = plan_of("hardware=ascend950dt", "parallel=ep64").cost.assumptions
    assert any("no tf32 peak and none wider: such products run as three of bf16" in clause for clause in ascend)


@pytest.mark.parametrize(
    ("overrides", "bound", "advice"),
    [
        (("hardware=h200", "parallel=ep8"), "memory", "speculation=dspark: 3.47 k → 11.2 k tokens/s a rank"),
        (("hardware=gb200", "parallel=ep64", "scheduler.max_num_seqs=512"), "compute f8_e4m3", "a higher f8_e4m3 peak"),
        (
            ("hardware=h200", "parallel=ep64", "scheduler.max_num_seqs=512"),
            "link network",
            "parallel.expert=8: 15.8 k → 48.7 k tokens/s a rank",
        ),
    ],
)
def test_the_bound_and_what_would_move_it(plan_of: PlanOf, overrides: tuple[str, ...], bound: str, advice: str):
    decode = plan_of(*overrides).cost.decode
    assert decode.point.steps[0].bound == bound
    assert advice in decode.moves


def test_the_advice_for_memory_is_true(plan_of: PlanOf):
    """Where experts hold a step up, a wider expert group and more sequences do help."""
    narrow = plan_of("hardware=h200", "parallel=ep8").cost.decode
    wide = plan_of("hardware=h200", "parallel=ep64").cost.decode
    more = plan_of("hardware=h200", "parallel=ep8", "scheduler.max_num_seqs=64").cost.decode
    assert narrow.point.steps[0].bound_part == "experts"
    assert wide.point.steps[0].memory_s < narrow.point.steps[0].memory_s
    assert more.point.tokens_per_s_per_gpu[0] > narrow.point.tokens_per_s_per_gpu[0]


def test_what_the_figures_take_for_granted_is_said_once(plan_of: PlanOf):
    split = plan_of(*SPLIT, "hardware=h200", "cache=prefix", "replay.on_hit=exact").cost.assumptions
    assert len(split) == len(set(split))
    assert "30.0% of a prompt is cached and not computed again" in split
    assert "rows that replay.on_hit=exact computes again after a hit are not counted" in split
    cold = plan_of("workload.cached_share=0").cost.assumptions
    assert not any("cached" in clause for clause in cold)
    assert not any("keeps no prefixes" in clause for clause in split)
    assert any("cache=paged keeps no prefixes" in clause for clause in plan_of().cost.assumptions)


def test_two_ways_of_reckoning_stand_side_by_side(plan_of: PlanOf):
    plan = plan_of("hardware=h200", "parallel=ep8", "cost=calibrated", "workload.requests_per_s=100")
    ideal, own = plan.cost.decode.point.steps
    assert (ideal.label, own.label) == ("roofline", "calibrated")
    assert own.time_s > ideal.time_s
    assert {figure.label for figure in plan.cost.headline} == {plan.cost.fleet.label} == {"calibrated"}
    rates = [line for line in cost_lines(plan) if "a rank" in line and "(roofline)" in line]
    assert rates and all("(calibrated)" in line for line in rates)


@pytest.mark.parametrize("draw", range(12))
def test_any_workload_on_any_layout_has_finite_figures(plan_of: PlanOf, sample_seed: int, draw: int):
    chance = random.Random(f"{sample_seed} {draw}")
    plan = plan_of(
        f"hardware={chance.choice(['h100', 'h200', 'b200', 'gb300', 'ascend950pr'])}",
        f"parallel={chance.choice(['ep64', 'ep128'])}",
        f"speculation={chance.choice(['none', 'dspark', 'ngram'])}",
        f"replay={chance.choice(['none', 'mask', 'compact'])}",
        f"workload.prompt_tokens={chance.choice([1, 2, 127, 4000, 65536])}",
        f"workload.output_tokens={chance.choice([1, 2, 700])}",
        f"workload.cached_share={chance.choice([0, 0.3, 0.999, 1])}",
        f"cache={chance.choice(['paged', 'prefix'])}",
        f"workload.utilisation={chance.choice([0.3, 1.0])}",
        f"workload.tokens_per_day={chance.choice([1, 1.0e18])}",
        f"workload.output_share={chance.choice(['auto', 1.0e-7, 0.9999999])}",
        f"workload.tokens_per_s_per_user={chance.choice(['null', 1.0e-3, 50, 1.0e9])}",
    )
    assert all(0 < figure.value < 1e15 for figure in plan.cost.headline)
    assert Plan.from_json(plan.to_json()) == plan
    assert not {"nan", "inf"} & set(render.text(plan).split())


def test_the_advice_for_links_is_true(plan_of: PlanOf):
    """Where the network holds a step up, an expert group inside the faster link's domain does help."""
    base = ("hardware=h200", "parallel=ep64", "scheduler.max_num_seqs=512")
    wide, narrow = plan_of(*base).cost.decode, plan_of(*base, "parallel.expert=8").cost.decode
    assert wide.point.steps[0].bound == "link network"
    assert narrow.point.tokens_per_s_per_gpu[0] > wide.point.tokens_per_s_per_gpu[0]
