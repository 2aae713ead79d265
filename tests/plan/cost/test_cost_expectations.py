"""What a workload expects: targets, sites, hits, room for queues, and a plan that is refused where it is strict."""

import re
from collections.abc import Callable

import pytest

from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import ExitCode
from deepinfer.plan import render
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
EP8 = ("hardware=h200", "parallel=ep8", "model=v41_flash")
SPLIT = (
    "hardware=gb300",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep8",
    "speculation=dspark",
    "cache=prefix",
    "scheduler.max_num_seqs=256",
    "scheduler.max_num_batched_tokens=8192",
)


def warned(plan: Plan, begins: str) -> str:
    (found,) = [warning for warning in plan.warnings if warning.startswith(begins)]
    return found


def fix_of(warning: str) -> str:
    return warning.rpartition("; ")[2]


def test_a_batch_that_users_do_not_allow_is_told_with_its_size(plan_of: PlanOf):
    base = (*EP8, "cost=calibrated", "workload.tokens_per_s_per_user=90")
    plan = plan_of(*base)
    warning = warned(plan, "scheduler.max_num_seqs=32: with 32 at once a user gets ")
    count = plan.cost.decode.point.sequences
    assert fix_of(warning) == f"scheduler.max_num_seqs={count}" and count < 32
    fixed = plan_of(*base, fix_of(warning))
    assert not any("max_num_seqs" in warning for warning in fixed.warnings)
    assert fixed.cost.figure("tokens_per_s_per_user").value == plan.cost.figure("tokens_per_s_per_user").value
    assert any(f"figures are those of {count} at once" in note for note in plan.cost.notes)


def test_hits_count_where_the_cache_keeps_prefixes(plan_of: PlanOf):
    paged, cold = plan_of(*EP8), plan_of(*EP8, "workload.cached_share=0")
    kept = plan_of(*EP8, "cache=prefix")
    assert paged.cost.headline == cold.cost.headline
    assert kept.cost.prefill.computed_tokens == pytest.approx(0.7 * 1024)
    assert not any("cached_share" in warning for warning in paged.warnings)  # nobody counts on them
    sized = plan_of(*EP8, "workload.requests_per_s=3")
    assert fix_of(warned(sized, "workload.cached_share=0.3: ")) == "cache=prefix"
    assert not any(
        "cached" in warning for warning in plan_of(*EP8, "cache=prefix", "workload.requests_per_s=3").warnings
    )


def test_a_fleet_beyond_the_site_is_told(plan_of: PlanOf):
    plan = plan_of("cluster=gb300_pd64", "workload.requests_per_s=5000")
    warning = warned(plan, "cluster.nodes=17: the fleet for 5 k requests/s needs ")
    assert fix_of(warning) == f"cluster.nodes={plan.cost.fleet.nodes}"
    small = plan_of("cluster=gb300_pd64", "workload.requests_per_s=1")
    assert not any(warning.startswith("cluster.nodes") for warning in small.warnings)


def test_ranks_that_are_busy_all_the_time_are_warned_of(plan_of: PlanOf):
    traffic = (*SPLIT, "workload.requests_per_s=20000")
    full = plan_of(*traffic)
    assert fix_of(warned(full, "workload.utilisation=1")) == "workload.utilisation=0.8"
    roomy = plan_of(*traffic, "workload.utilisation=0.8")
    assert not any("utilisation" in warning for warning in roomy.warnings)
    assert all(need.utilisation <= 0.8 for need in roomy.cost.fleet.needs)
    assert roomy.cost.fleet.ranks > full.cost.fleet.ranks
    assert roomy.cost.sustained.requests_per_s == pytest.approx(0.8 * full.cost.sustained.requests_per_s)


def test_no_fleet_for_users_who_cannot_be_content(plan_of: PlanOf):
    plan = plan_of(*SPLIT, "workload.tokens_per_s_per_user=1.0e6", "workload.requests_per_s=5")
    assert plan.cost.fleet is None and plan.cost.sustained is None
    assert any("no traffic is sized" in note for note in plan.cost.notes)


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (("workload.tokens_per_s_per_user=5000",), "workload.tokens_per_s_per_user=5000"),
        (("workload.ttft_s=0.0001",), "workload.ttft_s=0.0001"),
        (("model.max_model_len=4096", "workload.prompt_tokens=6000"), "workload: requests of 6,512 tokens"),
        (("cache.memory_bytes=67108864", "workload=long_context"), "workload: requests of 263,168 tokens"),
    ],
)
def test_strict_refuses_what_is_missed_and_its_fix_is_right(plan_of: PlanOf, overrides: tuple[str, ...], asked: str):
    base = (*EP8, "cost=calibrated", *overrides)
    plan_of(*base)  # warned of, not refused
    with pytest.raises(PlanErrors) as caught:
        plan_of(*base, "workload.strict=true")
    (problem,) = caught.value.problems
    assert (problem.asked, problem.code, caught.value.exit_code) == (asked, ExitCode.PLAN, 3)
    assert plan_of(*base, "workload.strict=true", *problem.fix.split()).cost.headline


def test_strict_refuses_fleets_beyond_the_site(plan_of: PlanOf):
    base = ("cluster=gb300_pd64", "workload.requests_per_s=5000", "workload.strict=true")
    with pytest.raises(PlanErrors, match=r"cluster\.nodes=17") as caught:
        plan_of(*base)
    assert plan_of(*base, caught.value.problems[0].fix).cost.fleet is not None


def test_a_layout_tells_what_it_sustains_and_what_balances_it(plan_of: PlanOf):
    plan = plan_of(*SPLIT, "workload.utilisation=0.8")
    cost, found = plan.cost, plan.cost.sustained
    prompts = cost.prefill.tokens_per_s_per_gpu[-1] * 4 / cost.prefill.computed_tokens
    answers = cost.decode.point.tokens_per_s_per_gpu[-1] * 8 / 512
    assert found.by_role == pytest.approx({"prefill": 0.8 * prompts, "decode": 0.8 * answers})
    assert found.requests_per_s == min(found.by_role.values()) == found.by_role[found.limit]
    assert found.rank_ratio == pytest.approx((prompts / 4) / (answers / 8))
    ((grown, count),) = found.replicas.items()
    better = plan_of(*SPLIT, "workload.utilisation=0.8", f"deploy.{grown}.replicas={count}").cost.sustained
    other = next(name for name in found.by_role if name != grown)
    assert found.limit == grown and better.requests_per_s == pytest.approx(found.by_role[other])
    (line,) = [line for line in render.text(plan).splitlines() if " sustains " in line]
    assert f"{found.limit} limits" in line and f"deploy.{grown}.replicas={count}" in line


def test_what_is_sustained_needs_the_layout_and_no_more(plan_of: PlanOf):
    """The inverse of the fleet: the traffic that the layout carries sizes to that layout again."""
    for base in ((*EP8, "cost=calibrated"), (*SPLIT, "workload.tokens_per_s_per_user=50")):
        plan = plan_of(*base)
        carried = plan.cost.sustained.requests_per_s
        again = plan_of(*base, f"workload.requests_per_s={carried * 0.999}").cost.fleet
        more = plan_of(*base, f"workload.requests_per_s={carried * 1.001}").cost.fleet
        assert again.ranks <= plan.layout.num_ranks < more.ranks or plan.cost.sustained.replicas
        assert again.ranks < more.ranks


def test_expert_degrees_that_are_advised_are_possible(plan_of: PlanOf):
    base = ("hardware=gb200", "parallel=ep128", "model=v41_flash")
    warning = warned(plan_of(*base), "expert groups of 128 span several nvlink domains of 72")
    fix = re.search(r"parallel\.expert=\d+", warning)[0]
    assert fix == "parallel.expert=64"
    assert not any("span several" in warning for warning in plan_of(*base, fix).warnings)


def test_a_site_without_a_number_of_nodes_has_no_limit(plan_of: PlanOf, spec_of: Callable):
    assert isinstance(spec_of("cluster=gb300_pd64").cluster, SiteCluster)
    plan = plan_of("cluster=none", *EP8, "workload.requests_per_s=100000")
    assert not any(warning.startswith("cluster.nodes") for warning in plan.warnings)
