"""The cost section can be checked from what it prints: sums add up, labels say whose shares were taken."""

import re
from collections.abc import Callable

import pytest

from deepinfer.plan import render
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
TIME = r"([\d.,]+) (s|ms|µs)"
ASCEND = ("hardware=ascend950dt", "parallel=ep64", "speculation=dspark", "cache=prefix", "workload=agentic")
SPLIT = (
    "hardware=gb300",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep64",
    "speculation=dspark",
    "cache=prefix",
    "workload=agentic",
    "scheduler.max_num_seqs=256",
    "scheduler.max_num_batched_tokens=8192",
)
LAYOUTS = (
    ("hardware=h200", "parallel=ep8", "model=v41_flash"),
    ("hardware=h200", "parallel=ep64", "model=v41_flash", "scheduler.max_num_seqs=512"),
    ASCEND,
    SPLIT,
    (),
)


def lines_of(plan: Plan, section: str) -> list[str]:
    return [line for line in render.text(plan).splitlines() if line.startswith(f"{section} ")]


def seconds(number: str, unit: str) -> float:
    return float(number.replace(",", "")) * UNITS[unit]


@pytest.mark.parametrize("cost", ["roofline", "calibrated"])
@pytest.mark.parametrize("overrides", LAYOUTS)
def test_a_step_is_the_sum_of_its_printed_parts(plan_of: PlanOf, overrides: tuple[str, ...], cost: str):
    steps = [line for line in lines_of(plan_of(*overrides, f"cost={cost}"), "cost") if "; of the parts " in line]
    assert len(steps) == 2
    for line in steps:
        total, _, said = line.partition(" a step: ")
        summed, _, rest = said.partition(f" ({cost}")
        whole = seconds(*re.search(rf"{TIME}$", total).groups())
        share = re.search(r"÷ ([\d.]+)% system share", summed)
        added = sum(seconds(*found) for found in re.findall(TIME, summed))
        assert whole == pytest.approx(added / (float(share[1]) / 100 if share else 1.0), rel=0.012)
        hidden = re.findall(TIME, rest.partition("; hidden ")[2])
        longest = seconds(*re.search(TIME, summed).groups())
        assert all(seconds(*found) <= longest * 1.01 for found in hidden)


def test_links_that_hold_a_step_up_are_not_hidden(plan_of: PlanOf):
    plan = plan_of(*LAYOUTS[1], "cost=roofline")
    (line,) = [line for line in lines_of(plan, "cost") if " a step: network" in line and " decode " in line]
    assert "; hidden nvlink" in line and ", parts " in line


def test_the_curve_has_a_head(plan_of: PlanOf):
    lines = lines_of(plan_of(*LAYOUTS[0]), "cost")
    head = next(index for index, line in enumerate(lines) if "sequences × tokens/s of a rank and of a user" in line)
    assert re.match(r"cost     decode +1 × ", lines[head + 1])


def test_shares_of_another_chip_are_in_the_label(plan_of: PlanOf):
    plan = plan_of(*ASCEND)
    assert {(figure.label, figure.stand_in) for figure in plan.cost.headline} == {("calibrated", "sm90")}
    assert plan.cost.stand_ins == {"all": "sm90"}
    text = render.text(plan)
    assert "(calibrated by sm90's shares)" in text and "(calibrated)" not in text
    own = plan_of("hardware=h200", "parallel=ep8", "model=v41_flash")
    assert {figure.stand_in for figure in own.cost.headline} == {""} and "'s shares" not in render.text(own)


def test_only_the_side_that_lacks_its_own_shares_is_marked(plan_of: PlanOf):
    plan = plan_of(*SPLIT, "hardware@deploy.decode.hardware=ascend950dt")
    assert plan.cost.stand_ins == {"decode": "sm90"}
    assert plan.cost.figure("prefill_tokens_per_s_per_gpu").stand_in == ""
    assert plan.cost.figure("decode_tokens_per_s_per_gpu").stand_in == "sm90"


def test_a_peak_is_named_where_there_is_one(plan_of: PlanOf):
    base = ("hardware=h200", "parallel=ep8", "model=v41_flash", "workload.requests_per_s=3")
    assert "peak" not in lines_of(plan_of(*base), "fleet")[0]
    assert "at the peak, 2 × the mean" in lines_of(plan_of(*base, "workload.peak_to_mean=2"), "fleet")[0]


def test_balance_names_the_ratio_that_it_assumes(plan_of: PlanOf):
    plan = plan_of(*SPLIT)
    (line,) = [line for line in lines_of(plan, "cost") if line.startswith("cost     balanced")]
    ratio = plan.cost.sustained.rank_ratio
    assert f"at {f'1 : {ratio:.3g}' if ratio >= 1 else f'{1 / ratio:.3g} : 1'} ranks of prefill : decode" in line


@pytest.mark.parametrize(
    ("overrides", "runs"),
    [
        ((), "this version runs it"),
        (("hardware=h200", "model=v41_tiny"), "this version runs it"),
        (("hardware=b200", "model=v41_tiny"), "no code yet for hardware of architecture sm100"),
        (("speculation=dspark", "cache=prefix"), "this version runs it"),
        (("parallel=dp2",), "this version runs it"),
        (("hardware=h200", "model=v41_tiny", "parallel=dp2"), "this version runs it"),
        (("hardware=ascend950", "model=v41_tiny", "parallel=dp2"), "parallel: 2 ranks"),
    ],
)
def test_the_verdict_answers_three_questions(plan_of: PlanOf, overrides: tuple[str, ...], runs: str):
    plan = plan_of(*overrides)
    (line,) = [line for line in lines_of(plan, "plan") if " verdict " in line]
    rate = plan.cost.figure("tokens_per_s_per_user").value
    printed = float(re.search(r"verdict +([\d.]+) tokens/s a user", line)[1])
    assert printed == pytest.approx(rate, rel=0.006)
    assert "(calibrated" in line and "; fits; " in line and runs in line


def test_f32_models_compute_in_f32(plan_of: PlanOf):
    base = ("hardware=h200", "parallel=ep8", "model=v41_flash", "cost=roofline")
    narrow, wide = plan_of(*base), plan_of(*base, "model.dtype=float32", "scheduler.max_num_seqs=16")
    assert "bf16" in narrow.cost.prefill.flops and "bf16" not in wide.cost.prefill.flops
    assert wide.cost.prefill.flops["f32"] == pytest.approx(narrow.cost.prefill.flops["bf16"])
    assert wide.cost.prefill.flops["f8_e4m3"] == pytest.approx(narrow.cost.prefill.flops["f8_e4m3"])
    assert wide.cost.prefill.tokens_per_s_per_gpu[0] < narrow.cost.prefill.tokens_per_s_per_gpu[0]
    assert wide.cost.prefill.link_bytes["nvlink"] > narrow.cost.prefill.link_bytes["nvlink"]


def test_plain_torch_on_a_gpu_is_said_to_be_reckoned_as_kernels(plan_of: PlanOf):
    said = "are reckoned at the speed of kernels"
    tiny = ("hardware=h200", "model=v41_tiny")
    assert any(said in clause for clause in plan_of(*tiny, "kernels=reference").cost.assumptions)
    assert not any(said in clause for clause in plan_of().cost.assumptions)
