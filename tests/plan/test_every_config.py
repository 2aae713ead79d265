"""Every option of every group composes, converts, and plans or is refused by name."""

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from deepinfer.config import argv
from deepinfer.config.compose import read
from deepinfer.config.errors import ExitCode
from deepinfer.config.facts import chip_sheets
from deepinfer.config.specs import Spec
from deepinfer.plan.resolve import RELEASED
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
CONF = Path(str(resources.files("deepinfer.conf")))
OPTIONS = sorted((file.parent.name, file.stem) for file in CONF.glob("*/*.yaml"))
REFUSED = {  # option → the one thing that is in its way on a laptop with a tiny model
    ("parallel", "ep16"): "8 experts of v41_tiny are not divisible by 16",
    ("parallel", "ep32"): "8 experts of v41_tiny are not divisible by 32",
    ("parallel", "ep64"): "8 experts of v41_tiny are not divisible by 64",
    ("parallel", "ep128"): "8 experts of v41_tiny are not divisible by 128",
    ("kernels", "triton"): "triton is for cuda, the chip is cpu",
    ("kernels", "deepseek"): "deepseek is for cuda, the chip is cpu",
    ("balancer", "eplb"): "keeps all experts on every rank",
    ("executor", "distributed"): "the layout has 1 rank",
    ("cost", "measured"): "cost.path",
    ("cost", "aiconfigurator"): "aiconfigurator",
    ("hardware", "same"): "same means the chip of the top level, and this is the top level",
}


def test_all_option_files_were_found() -> None:
    assert {group for group, _ in OPTIONS} == set(Spec.__struct_fields__)
    assert len(OPTIONS) >= 70
    assert not list(CONF.glob("*/*/*.yaml"))


@pytest.mark.sample(20)
@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=[f"{group}={option}" for group, option in OPTIONS])
def test_option(plan_of: PlanOf, spec_of: Callable[..., Spec], group: str, option: str) -> None:
    base = () if group in ("model", "cluster") else ("model=v41_tiny",)
    overrides = [*base, "model.weights=dummy", f"{group}={option}"]
    if (group, option) == ("model", "v41_flash"):
        overrides += ["hardware=gb300", "parallel=ep64"]
    assert read(argv.parse(overrides))[0] == spec_of(*overrides)
    if (group, option) in REFUSED:
        with pytest.raises(PlanErrors, match=REFUSED[group, option]) as refused:
            plan_of(*overrides)
        assert refused.value.exit_code == ExitCode.PLAN
    else:
        plan = plan_of(*overrides)
        assert plan.choices[group] == option
        assert plan.memory and plan.graph and plan.ops


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("hardware=ascend950", "sampling=greedy", "scheduler.max_num_seqs=4k", "model.path=/a b/it's"),
        ("deploy=disaggregated", "parallel@deploy.decode.parallel=ep64", "deploy.prefill.replicas=2"),
        (
            "kernels.ops.linear=triton",
            "sampling.stop=[a, b]",
            "sampling.logit_bias={7: 1.5}",
            "hardware.memory_bytes=4GiB",
        ),
    ],
)
def test_specs_of_these_tests_are_what_hydra_composes(spec_of: Callable[..., Spec], overrides: tuple[str, ...]) -> None:
    assert spec_of(*overrides) == read(argv.parse(overrides))[0]


@pytest.mark.parametrize("parallel", ["ep2", "ep4", "ep8", "ep64", "ep128"])
@pytest.mark.parametrize("hardware", ["h200", "gb200", "ascend950"])
def test_layouts_of_the_released_model(plan_of: PlanOf, hardware: str, parallel: str) -> None:
    try:
        plan = plan_of(f"hardware={hardware}", f"parallel={parallel}", "speculation=dspark")
    except PlanErrors as refused:
        assert refused.exit_code == ExitCode.MEMORY
        assert parallel in ("ep2", "ep4")
    else:
        assert plan.layout.num_ranks == int(parallel.removeprefix("ep"))


def test_chips_name_known_backends_and_say_where_facts_come_from() -> None:
    from deepinfer.plan.catalog import BY_NAME

    for option, sheet in chip_sheets().items():
        assert set(sheet["op_backends"]) <= BY_NAME.keys(), option
        assert sheet["op_backends"][-1] == "reference", option
        facts = [sheet["architecture"], sheet["memory_bytes"], sheet["memory_bandwidth_bytes_per_s"]]
        for table in ("peak_flops_by_dtype", "links", "toolkit", "platform"):
            facts += sheet[table].values()
        for fact in facts:
            assert fact["source"] and fact["date"].count("-") == 2, option


def test_auto_means_the_same_repository_as_v41_flash(spec_of: Callable[..., Spec]) -> None:
    assert spec_of("model=v41_flash").model.repo == RELEASED


def test_the_two_ascend_variants_differ_and_the_short_name_says_which(plan_of: PlanOf) -> None:
    sheets = chip_sheets()
    pr, dt, short = sheets["ascend950pr"], sheets["ascend950dt"], sheets["ascend950"]
    assert pr["memory_bytes"]["value"] != dt["memory_bytes"]["value"] == short["memory_bytes"]["value"]
    assert "950DT" in short["chips_note"]
    plan = plan_of("hardware=ascend950", "parallel=ep64")
    assert any("950DT" in note for note in plan.notes)
