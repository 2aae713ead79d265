"""What must hold of any cost, whatever its numbers: sums, directions, and agreement of its parts with each other."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from deepinfer.config.errors import Refused
from deepinfer.plan import render
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
LAYOUTS = {
    "h200": ("model=v41_flash", "hardware=h200", "parallel=ep8"),
    "h200_wide": ("model=v41_flash", "hardware=h200", "parallel=ep64", "speculation=dspark"),
    "gb300_beyond": ("model=v41_flash", "hardware=gb300", "parallel=ep128", "scheduler.max_num_seqs=512"),
    "gb300_split": (
        "model=v41_flash",
        "hardware=gb300",
        "deploy=disaggregated",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep64",
        "cache=prefix",
    ),
    "ascend": ("model=v41_flash", "hardware=ascend950", "parallel=ep64"),
}
FASTER = {  # whatever a chip can do better
    "h200": ("peak_flops_by_dtype.f8_e4m3", "peak_flops_by_dtype.bf16", "links.nvlink", "links.network"),
    "gb300": ("peak_flops_by_dtype.f8_e4m3", "peak_flops_by_dtype.bf16", "links.nvlink", "links.network"),
    "ascend950": ("peak_flops_by_dtype.f8_e4m3", "peak_flops_by_dtype.bf16", "links.unifiedbus", "links.network"),
}


def times(plan: Plan) -> list[float]:
    """Every time that a cost reckons."""
    prefill, decode = plan.cost.prefill, plan.cost.decode
    assert prefill is not None and decode is not None
    found = [step.time_s / prefill.step_tokens for step in prefill.steps] + list(prefill.ttft_s)
    return found + [step.time_s for point in (*decode.curve, decode.point) for step in point.steps]


def not_longer(times_after: list[float], times_before: list[float]) -> bool:
    return all(after <= before * (1 + 1e-9) for after, before in zip(times_after, times_before, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cost", ["roofline", "calibrated"])
def test_nothing_gets_slower_on_a_faster_chip(plan_of: PlanOf, layout: str, cost: str, sample_seed: int) -> None:
    overrides = (*LAYOUTS[layout], f"cost={cost}")
    chip = overrides[1].partition("=")[2]
    draw = random.Random(f"{sample_seed} {layout} {cost}")
    for path in (*FASTER[chip], "memory_bandwidth_bytes_per_s"):
        key = f"hardware.{path}" if path.startswith(("peak", "memory")) else f"hardware.{path}.value"
        speeds = sorted(draw.uniform(9, 13) for _ in range(4))
        if path.startswith("peak"):
            speeds = [speed + 3 for speed in speeds]
        plans = [plan_of(*overrides, f"{key}={10**speed:.0f}") for speed in speeds]
        for slow, fast in itertools.pairwise(plans):
            assert not_longer(times(fast), times(slow)), key


def test_a_network_that_overtakes_the_domains_link(plan_of: PlanOf) -> None:
    base = (*LAYOUTS["gb300_beyond"], "cost=roofline", "hardware.links.nvlink.value=200GB/s")
    before, after = (plan_of(*base, f"hardware.links.network.value={speed}GB/s") for speed in (199, 201))
    assert not_longer(times(after), times(before))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_one_token_longer_than_a_step_costs_a_token_more(plan_of: PlanOf, layout: str) -> None:
    base = (*LAYOUTS[layout], "scheduler.max_num_batched_tokens=4096", "workload.cached_share=0")
    rates = [plan_of(*base, f"workload.prompt_tokens={tokens}").cost.prefill for tokens in (4096, 4097, 8192, 8193)]
    for fits, is_over in (rates[:2], rates[2:]):
        assert fits is not None and is_over is not None
        assert is_over.step_tokens == fits.step_tokens == 4096
        for one, other in zip(fits.tokens_per_s_per_gpu, is_over.tokens_per_s_per_gpu, strict=True):
            assert math.isclose(one, other, rel_tol=0.01)
        assert all(late > early for early, late in zip(fits.ttft_s, is_over.ttft_s, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.999, 0.9999, 1.0])
def test_a_fleet_computes_what_its_prompts_compute(plan_of: PlanOf, share: float) -> None:
    plan = plan_of(*LAYOUTS["gb300_split"], "workload.requests_per_s=1e6", f"workload.cached_share={share}")
    prefill, fleet = plan.cost.prefill, plan.cost.fleet
    assert prefill is not None and fleet is not None
    assert math.isclose(fleet.computed_tokens_per_s, 1e6 * prefill.computed_tokens, rel_tol=1e-9)
    assert all(need.tokens_per_s_per_gpu > 0 and need.ranks_exact > 0 for need in fleet.needs)
    for need in fleet.needs:
        assert need.ranks * need.tokens_per_s_per_gpu * fleet.utilisation >= need.tokens_per_s * (1 - 1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_add_up(plan_of: PlanOf, layout: str) -> None:
    cost = plan_of(*LAYOUTS[layout]).cost
    assert cost.prefill is not None and cost.decode is not None
    for steps, parts in ((cost.prefill.steps, cost.prefill.parts), (cost.decode.point.steps, cost.decode.parts)):
        for step in steps:
            assert math.isclose(sum(part.compute_s for part in step.parts), sum(step.compute_s.values()), rel_tol=1e-9)
            assert math.isclose(sum(part.memory_s for part in step.parts), step.memory_s, rel_tol=1e-9)
            assert [part.part for part in step.parts] == [part.part for part in parts]
    assert math.isclose(sum(part.weight_bytes for part in cost.prefill.parts), cost.prefill.weight_bytes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rates_of_a_rank_are_those_of_its_users(plan_of: PlanOf, layout: str) -> None:
    decode = plan_of(*LAYOUTS[layout]).cost.decode
    assert decode is not None
    for point in decode.curve:
        for rank, user in zip(point.tokens_per_s_per_gpu, point.tokens_per_s_per_user, strict=True):
            assert math.isclose(rank, point.sequences * user)


def test_what_passes_between_roles_is_the_cache_of_a_prompt(plan_of: PlanOf) -> None:
    plan = plan_of(*LAYOUTS["gb300_split"], "workload.prompt_tokens=10000")
    prefill = plan.cost.prefill
    assert prefill is not None
    assert math.isclose(prefill.transfer_bytes, 890 * 10_000 + 2_728_352, rel_tol=0.001)  # tokens, then rings and tails


@pytest.mark.parametrize("layout", ["h200", "gb300_split"])
def test_longer_contexts_more_sequences_and_fewer_hits_take_longer(plan_of: PlanOf, layout: str) -> None:
    def step(*overrides: str) -> float:
        decode = plan_of(*LAYOUTS[layout], *overrides).cost.decode
        assert decode is not None
        return decode.point.steps[-1].time_s

    contexts = [step(f"workload.prompt_tokens={tokens}") for tokens in (1024, 8192, 65536, 262144)]
    batches = [step(f"scheduler.max_num_seqs={count}") for count in (1, 2, 7, 32, 100)]
    assert contexts == sorted(contexts) and batches == sorted(batches)
    firsts = []
    for share in (0.95, 0.5, 0.1, 0.0):
        prefill = plan_of(*LAYOUTS[layout], "cache=prefix", f"workload.cached_share={share}").cost.prefill
        assert prefill is not None
        firsts.append(prefill.ttft_s[-1])
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("tokens", [200, 4096, 65536])
def test_compact_replay_is_never_slower_and_useless_drafts_never_faster(plan_of: PlanOf, tokens: int) -> None:
    base = (*LAYOUTS["h200"], f"workload.prompt_tokens={tokens}")
    whole, compact = (plan_of(*base, f"replay={kind}").cost.prefill for kind in ("none", "compact"))
    assert whole is not None and compact is not None
    assert all(a >= b for a, b in zip(compact.tokens_per_s_per_gpu, whole.tokens_per_s_per_gpu, strict=True))
    plain = plan_of(*base).cost.decode
    useless = plan_of(*base, "speculation=dspark", "workload.accepted_tokens=1").cost.decode
    assert plain is not None and useless is not None
    for one, other in zip(plain.curve, useless.curve, strict=False):
        assert all(a >= b for a, b in zip(one.tokens_per_s_per_user, other.tokens_per_s_per_user, strict=True))


def test_one_rank_sends_nothing(plan_of: PlanOf) -> None:
    cost = plan_of("hardware=h200", "model=v41_tiny").cost
    assert cost.prefill is not None and cost.decode is not None
    assert not cost.prefill.link_bytes and not cost.decode.link_bytes


EXTREMES = ("0", "-1", "nan", "inf", "1e-300", "1e308", "1", "1e18", "999999999999999999999")
NUMBERS = [
    "workload.prompt_tokens",
    "workload.output_tokens",
    "workload.cached_share",
    "workload.accepted_tokens",
    "workload.requests_per_s",
    "workload.tokens_per_day",
    "workload.output_share",
    "workload.peak_to_mean",
    "workload.tokens_per_s_per_user",
    "workload.ttft_s",
    "hardware.memory_bandwidth_bytes_per_s.value",
    "hardware.peak_flops_by_dtype.bf16.value",
    "hardware.links.nvlink.value",
    "hardware.links.network.value",
    "cost.system_share.value",
]


@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_breaks_the_arithmetic(plan_of: PlanOf, key: str) -> None:
    planned = refused = 0
    traffic = ("workload.tokens_per_day=1T",) if key == "workload.output_share" else ()
    for value in EXTREMES:
        try:
            plan = plan_of(*LAYOUTS["h200"], *traffic, f"{key}={value}")
        except Refused:
            refused += 1
            continue
        planned += 1
        assert all(0 < figure.value < math.inf for figure in plan.cost.headline)
        assert Plan.from_json(plan.to_json()) == plan
        render.text(plan)
    assert planned and refused
