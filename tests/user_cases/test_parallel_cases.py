"""What users of such engines have reported about layouts, P01 to P11, and three of kernels that a plan can answer.

What a plan can say is tested here, what ranks do where they are (`ELSEWHERE` in test_every_case.py). What is about a router
waits for one (`WAITING`), which is refused by name until then.
"""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec import structs

from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import tensor_table
from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan, PlanErrors

Run = Callable[..., "Outcome"]  # type: ignore[name-defined]  # noqa: F821 — of conftest.py
FLASH = ("hardware=gb300", "model.weights=dummy")


def plan_of(*overrides: str) -> Plan:
    spec = load(*overrides)
    return resolve(spec, probe(spec))


def test_p01_every_violated_rule_in_one_report(deepinfer: Run) -> None:
    """vllm#52435: one divisibility error hid the next. All at once, with the sizes that would do."""
    layout = ("parallel.attention_dp=12", "parallel.expert=8", "parallel.redundant_experts=1")
    done = deepinfer(
        "plan", *FLASH, *layout, "speculation=dspark", "speculation.depth=7", "scheduler.max_num_seqs=4096"
    )
    assert done.code == 3
    for part in (
        "12 ranks are not divisible by 8",
        "384 experts + 1 redundant of v41_flash are not divisible by 8",
        "trained for blocks of 5",
        "4096 sequences with 7 drafts each need 32768 rows",
    ):
        assert part in done.err
    assert done.err.count("type: ") == 3


def test_p01_valid_sizes_are_listed(deepinfer: Run) -> None:
    done = deepinfer("plan", *FLASH, "parallel.attention_dp=12", "parallel.expert=5")
    assert done.code == 3 and "can be split 1, 2, 3, 4, 6 or 12 ways" in done.err


@pytest.mark.parametrize("key", ["parallel.tp", "parallel.tensor_parallel_size", "parallel.pp"])
def test_p01_degrees_that_are_not_here(key: str) -> None:
    """Heads are never divided, so there is no such rule to break: the key says so, and which degrees there are."""
    with pytest.raises(
        Refused, match=r"there is no .* parallelism.*attention_dp, parallel\.context and parallel\.expert"
    ):
        load(f"{key}=6", "parallel.expert=6")


def test_p02_the_dimension_that_cannot_be_split(deepinfer: Run) -> None:
    """vllm-ascend#8725: sixteen ways do not start where eight do, without a reason. Here the experts are named."""
    tiny = ("plan", "model=v41_tiny", "model.weights=dummy", "parallel.redundant_experts=0")
    eight = deepinfer(*tiny, "parallel.attention_dp=8", "parallel.expert=8")
    sixteen = deepinfer(*tiny, "parallel.attention_dp=16", "parallel.expert=16")
    assert (eight.code, sixteen.code) == (0, 3)
    assert "8 experts of v41_tiny are not divisible by 16" in sixteen.err
    assert "can be split 1, 2, 4 or 8 ways" in sixteen.err


@pytest.mark.parametrize("parallel", ["ep4", "ep64", "ep128"])
def test_p03_no_shard_cuts_a_scale_block(parallel: str) -> None:
    """vllm#47528: a shard's edge inside a scale block. Ours run between whole experts and whole rows of the tables,
    and blocks of scales lie within an expert and along a row, so no layout can cut one."""
    layout = plan_of(*FLASH, f"parallel={parallel}", "parallel.engram=sharded")
    config, columns = layout.model.config, layout.model.config.engram_head_dim
    for rank in layout.layout.ranks:
        assert rank.experts[1] - rank.experts[0] == config.n_routed_experts // layout.layout.roles[0].expert
    for table, rows in enumerate(config.engram_num_embeddings):
        spans = [rank.engram_rows[table] for rank in layout.layout.ranks]
        assert layout.layout.roles[0].engram == "sharded" and spans[0][0] == 0 and spans[-1][1] == rows
        assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert columns % scale_columns(config) == 0


def scale_columns(config: V41Config) -> int:
    """Scales along one row of the n-gram tables; their number of rows is that of the table."""
    shapes = {spec.name.rpartition("embed.")[2]: spec.shape for spec in tensor_table(config) if "engram" in spec.name}
    assert shapes["scale"][0] == shapes["weight"][0]
    return int(shapes["scale"][1])


@pytest.mark.parametrize("key", ["parallel.eplb", "eplb", "enable_eplb"])
def test_p04_a_balancer_is_an_option(key: str, deepinfer: Run) -> None:
    """What moves when experts do: tests/parallel/test_rebalance.py."""
    with pytest.raises(Refused, match="balancer=eplb"):
        load(f"{key}=true")
    done = deepinfer("plan", "model=v41_tiny", "parallel=ep2", "balancer=eplb", "format=json")
    assert done.code == 0 and '"balancer"' in done.out


@pytest.mark.parametrize("key", ["serving.router", "router"])
def test_a_router_is_refused_by_name(key: str) -> None:
    """P08 to P10 wait for one."""
    with pytest.raises(Refused, match=rf"{re.escape(key)}=.*\n.*this version has none of it"):
        load(f"{key}=round_robin")


@pytest.mark.parametrize("redundant", [0, 64])
def test_p05_no_slot_twice_on_a_rank(redundant: int) -> None:
    """vllm PR#18343: slots of a rank are a run of consecutive numbers, and the ranks of a group tile all of them."""
    plan = plan_of(*FLASH, "parallel=ep64", f"parallel.redundant_experts={redundant}")
    slots = [slot for rank in plan.layout.ranks for slot in range(*rank.experts)]
    assert slots == list(range(plan.model.config.n_routed_experts + redundant))


@pytest.mark.parametrize(("cores", "warned"), [(1, True), (3, True), (4, False)])
def test_p02_more_ranks_than_cores_are_a_warning(cores: int, warned: bool) -> None:
    """Nothing is in their way: they take turns, and the plan says so."""
    spec = load("model=v41_tiny", "hardware=cpu", "parallel=ep4")
    facts = probe(spec)
    plan = resolve(spec, structs.replace(facts, machine=structs.replace(facts.machine, cores=cores)))
    turns = f"4 ranks take turns on {cores} core{'s' * (cores > 1)}: the same answers, later; parallel=single"
    assert (turns in plan.warnings) == warned


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware=ascend950", "parallel=ep64", "kernels=triton"), "triton is for cuda, the chip is ascend"),
        (("hardware=ascend950", "parallel=ep64", "kernels.ops.linear=deepseek"), "deepseek is for cuda"),
        (("hardware=h200", "parallel=ep64", "kernels=deepseek"), "built for sm100 or sm103, the chip is sm90"),
    ],
)
def test_n01_op_and_chip_are_checked_at_plan_time(overrides: tuple[str, ...], says: str) -> None:
    """vllm-ascend#13904: an op met a chip that has no such op only while running."""
    with pytest.raises(PlanErrors, match=says):
        plan_of(*overrides, "model.weights=dummy")


def test_n01_a_dtype_that_a_backend_cannot_compute_in() -> None:
    with pytest.raises(PlanErrors, match=r"native computes in float32, model\.dtype is float64"):
        plan_of("model=v41_tiny", "kernels=native", "model.dtype=float64")


def test_n02_kernels_name_the_chips_that_they_are_built_for() -> None:
    """sgl-kernel-npu#544: built for one, running on another, both named."""
    for backend in ("triton", "deepseek"):
        with pytest.raises(PlanErrors) as refused:
            plan_of("hardware=cpu", "model=v41_tiny", f"kernels={backend}")
        assert f"{backend} is for cuda, the chip is cpu" in {problem.found for problem in refused.value.problems}
    with pytest.raises(PlanErrors) as refused:
        plan_of("hardware=h100", "parallel=ep64", "model.weights=dummy", "kernels=deepseek")
    assert "deepseek is built for sm100 or sm103, the chip is sm90" in {each.found for each in refused.value.problems}


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_n03_reproducible_is_usable_with_what_a_chip_offers(kernels: str) -> None:
    """sglang PR#37292: the invariant mode refused the only backend there was."""
    plan = plan_of(*FLASH, "parallel=ep64", "sampling=reproducible", f"kernels={kernels}", "speculation=dspark")
    assert plan.numerics.reproducible and plan.numerics.verify == "coupled"
