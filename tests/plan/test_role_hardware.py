"""Prefill and decode on chips of their own: what each side gets, what both share, and what does not go together."""

from collections.abc import Callable

import pytest

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.engine.unbuilt import device_problem
from deepinfer.plan import render
from deepinfer.plan.require import missing
from deepinfer.plan.roles import OPTIONS
from deepinfer.plan.rules_roles import UNTOUCHED, UNTOUCHED_CHIP
from deepinfer.plan.types import Plan, PlanErrors, RolePlan

PlanOf = Callable[..., Plan]
DEGREES = ("deploy=disaggregated", "parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep64")
MIXED = ("hardware=gb300", "hardware@deploy.decode.hardware=ascend950", *DEGREES)
TINY = ("model=v41_tiny", "model.weights=dummy", "deploy=disaggregated")


@pytest.fixture
def refused(plan_of: PlanOf) -> Callable[..., tuple[Problem, ...]]:
    """The problems of some overrides, all of the plan's class."""

    def make(*overrides: str) -> tuple[Problem, ...]:
        with pytest.raises(PlanErrors) as error:
            plan_of(*overrides)
        assert error.value.exit_code == ExitCode.PLAN
        return error.value.problems

    return make


def backends(role: RolePlan) -> set[str]:
    return {choice.backend for choice in role.ops}


def test_each_side_has_its_chip_ops_floors_and_memory(plan_of: PlanOf) -> None:
    plan = plan_of(*MIXED)
    prefill, decode = plan.layout.roles
    assert (prefill.hardware.option, decode.hardware.option) == ("gb300", "ascend950")
    assert (backends(prefill), backends(decode)) == ({"deepseek", "triton"}, {"ascend"})
    assert "cuda" in {floor.what for floor in prefill.floors} and "cann" not in {floor.what for floor in prefill.floors}
    assert "cann" in {floor.what for floor in decode.floors} and "cuda" not in {floor.what for floor in decode.floors}
    for memory in plan.memory:
        usable = plan.layout.role(memory.role).hardware.usable_bytes
        assert memory.headroom_bytes == usable - memory.device_bytes >= 0
    assert prefill.hardware.usable_bytes == int(279e9 * 0.92)
    assert decode.hardware.usable_bytes == int(144e9 * 0.92)
    assert Plan.from_json(plan.to_json()) == plan


def test_the_first_role_is_what_one_chip_readers_see(plan_of: PlanOf) -> None:
    for overrides in (MIXED, ("hardware=gb200", "parallel=ep64"), ()):
        plan = plan_of(*overrides)
        first = plan.layout.roles[0]
        assert (plan.hardware, plan.ops, plan.floors) == (first.hardware, first.ops, first.floors)


def test_a_side_that_names_no_chip_takes_the_top_levels(plan_of: PlanOf) -> None:
    by_name = plan_of("hardware=gb300", "hardware@deploy.decode.hardware=gb300", *DEGREES)
    by_default = plan_of("hardware=gb300", *DEGREES)
    assert by_name.layout == by_default.layout
    assert by_name.rank_digest == by_default.rank_digest


def test_a_side_s_chip_can_be_changed_key_by_key(plan_of: PlanOf) -> None:
    plan = plan_of(*MIXED, "deploy.decode.hardware.memory_bytes=112GB", "hardware.memory_bytes=270GB")
    assert [role.hardware.memory_bytes for role in plan.layout.roles] == [270 * 10**9, 112 * 10**9]


def test_nodes_and_domains_are_those_of_each_chip(plan_of: PlanOf) -> None:
    layout = plan_of(*MIXED).layout
    assert (layout.num_nodes, layout.num_domains) == (1 + 8, 2)
    nodes = {role.name: sorted({rank.node for rank in layout.ranks if rank.role == role.name}) for role in layout.roles}
    assert nodes == {"prefill": [0], "decode": list(range(1, 9))}
    assert {rank.device for rank in layout.ranks if rank.role == "decode"} == set(range(8))


def test_replicas_on_boards_of_their_own_are_domains_of_their_own(plan_of: PlanOf) -> None:
    both = ("parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep4")
    layout = plan_of("hardware=b200", "deploy=disaggregated", *both, "deploy.prefill.replicas=2").layout
    assert (layout.num_nodes, layout.num_domains) == (3, 3)  # four of eight devices of a board are idle each time


def test_ranks_on_a_cpu_are_processes_of_one_machine(plan_of: PlanOf) -> None:
    layout = plan_of(*TINY, "parallel@deploy.decode.parallel=dp2").layout
    assert layout.num_nodes == 1
    assert [(rank.node, rank.device) for rank in layout.ranks] == [(0, 0), (0, 1), (0, 2)]


def test_only_the_ranks_on_the_cpu_share_its_memory(plan_of: PlanOf) -> None:
    overrides = (*TINY, "model.dtype=float32", "parallel@deploy.decode.parallel=dp2")
    alone = plan_of("model=v41_tiny", "model.weights=dummy").hardware.usable_bytes
    mixed = plan_of(*overrides, "hardware@deploy.prefill.hardware=h200").layout.role("decode").hardware
    assert mixed.usable_bytes == alone // 2
    assert plan_of(*overrides).layout.role("decode").hardware.usable_bytes == alone // 3


def test_one_side_too_big_is_named_with_its_own_cure(plan_of: PlanOf) -> None:
    both = ("parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep2")
    with pytest.raises(PlanErrors) as error:
        plan_of("hardware=gb300", "deploy=disaggregated", "hardware@deploy.decode.hardware=ascend950", *both)
    (problem,) = error.value.problems
    assert problem.asked == "model=v41_flash on Huawei Ascend 950DT, 2 ranks of the decode side"
    assert problem.fix == "parallel@deploy.decode.parallel=ep4"
    assert error.value.exit_code == ExitCode.MEMORY
    assert plan_of(
        "hardware=gb300",
        "deploy=disaggregated",
        "hardware@deploy.decode.hardware=ascend950",
        both[0],
        problem.fix,
    )


def test_the_cache_format_does_not_depend_on_the_chip(plan_of: PlanOf) -> None:
    formats = {plan_of(*overrides).cache for overrides in (MIXED, ("hardware=gb300", *DEGREES))}
    assert len(formats) == 1


def test_digests_cover_both_sides(plan_of: PlanOf) -> None:
    same, mixed = plan_of("hardware=gb300", *DEGREES), plan_of(*MIXED)
    assert same.rank_digest != mixed.rank_digest
    assert same.numerics_digest != mixed.numerics_digest
    assert same.numerics_digest == plan_of("hardware=gb300", "parallel=ep64").numerics_digest
    less = plan_of(*MIXED, "deploy.decode.hardware.node_devices=4")
    assert less.numerics_digest == mixed.numerics_digest  # where a rank stands changes no bit


def test_two_chips_are_a_warning_with_its_cure(plan_of: PlanOf) -> None:
    (warning,) = plan_of(*MIXED).warnings
    assert "round differently" in warning and warning.endswith("hardware@deploy.decode.hardware=same")
    assert not plan_of(*MIXED, "hardware@deploy.decode.hardware=same").warnings
    assert not plan_of(*MIXED, "hardware=ascend950pr").warnings  # another memory, the same ops


def test_reproducible_refuses_ops_that_differ(refused: Callable[..., tuple[Problem, ...]], plan_of: PlanOf) -> None:
    (problem,) = refused(*MIXED, "sampling.reproducible=true")
    assert problem.found == "prefill on NVIDIA GB300 NVL72 and decode on Huawei Ascend 950DT"
    assert plan_of(*MIXED, "sampling.reproducible=true", problem.fix)
    assert plan_of(*MIXED, "sampling.reproducible=true", "hardware=ascend950pr")
    (other_ops,) = refused(
        "hardware=gb300", *DEGREES, "hardware@deploy.decode.hardware=gb300", "sampling.reproducible=true",
        "deploy.decode.hardware.op_backends=[triton, reference]",
    )  # fmt: skip
    assert "round differently" in other_ops.why


def test_two_dtypes_are_refused_and_one_is_enough(refused: Callable[..., tuple[Problem, ...]], plan_of: PlanOf) -> None:
    overrides = (*TINY, "hardware@deploy.decode.hardware=h200")
    (problem,) = refused(*overrides)
    assert problem.found == "it would mean float32 for the prefill side and bfloat16 for the decode side"
    plan = plan_of(*overrides, problem.fix)
    assert plan.numerics.dtype == "bfloat16" and plan.numerics.threads >= 1
    assert "thread" in render.text(plan)  # of the side that computes on a CPU


def test_collectives_must_suit_every_chip(refused: Callable[..., tuple[Problem, ...]]) -> None:
    (problem,) = refused(*MIXED, "executor=distributed", "executor.backend=nccl")
    assert problem.found == "Huawei Ascend 950DT speaks gloo or hccl"


def test_a_virtual_side_makes_it_a_simulation(plan_of: PlanOf, refused: Callable[..., tuple[Problem, ...]]) -> None:
    overrides = ("hardware=gb300", *DEGREES, "hardware@deploy.decode.hardware=virtual")
    assert any(node.implementation.endswith("SimulatedExecutor") for node in plan_of(*overrides).graph)
    (problem,) = refused(*overrides, "executor=distributed")
    assert problem.fix == "executor=simulated"


def test_pins_that_no_chip_takes_are_told_once(refused: Callable[..., tuple[Problem, ...]]) -> None:
    (problem,) = refused(*MIXED, "kernels.ops={liner: triton}")
    assert "linear" in problem.fix


@pytest.mark.parametrize("option", ["same", "auto"])
def test_options_that_name_no_chip(refused: Callable[..., tuple[Problem, ...]], option: str) -> None:
    (problem,) = refused(*DEGREES, "hardware=gb300", f"hardware@deploy.decode.hardware={option}") if option == "auto" else (
        refused("hardware=same")
    )  # fmt: skip
    assert problem.asked.endswith(f"={option}") and problem.why and problem.fix


def test_text_tells_both_chips_apart(plan_of: PlanOf) -> None:
    text = render.text(plan_of(*MIXED))
    assert "on 4 × NVIDIA GB300 NVL72 + 64 × Huawei Ascend 950DT" in text
    for line in (
        "layout   ranks          68 on 9 nodes, 2 nvlink or unifiedbus domains",
        "ops      ascend         decode: all 23 (",
        "needs    prefill: os linux, gcc ≥ 13, python ≥ 3.12, cuda ≥ 13.0",
        "of 132.480 GB usable",
        "of 256.680 GB usable",
    ):
        assert line in text
    assert "prefill: all" not in render.text(plan_of("hardware=gb300", *DEGREES))  # told once where both are alike


def test_what_a_machine_lacks_names_both_chips(plan_of: PlanOf, laptop: object) -> None:
    from deepinfer.config.probes import probe_machine

    class Here:
        machine = probe_machine(laptop)  # type: ignore[arg-type]

    sentence = missing(plan_of(*MIXED), Here())  # type: ignore[arg-type]
    assert sentence is not None
    assert sentence.startswith("This plan needs 4 × NVIDIA GB300 NVL72, 64 × Huawei Ascend 950DT, Linux")
    assert sentence.count("no accelerator") == 1


def test_a_run_is_refused_for_the_chip_that_is_not_here(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "model.dtype=float32", "hardware@deploy.decode.hardware=h200")
    problem = device_problem(plan, "This plan needs another machine.")
    assert problem is not None
    assert (problem.asked, problem.fix) == ("hardware=h200", "deploy=colocated hardware=cpu")
    assert plan.hardware.kind == "cpu"  # of the first side, which this machine has


# what is asked for and would be read by nobody


def test_a_top_level_layout_beside_two_sides(refused: Callable[..., tuple[Problem, ...]], plan_of: PlanOf) -> None:
    (problem,) = refused("hardware=gb300", *DEGREES, "parallel=ep8")
    assert problem.fix == ("parallel=single parallel@deploy.prefill.parallel=ep8 parallel@deploy.decode.parallel=ep8")
    assert plan_of("hardware=gb300", *DEGREES, "parallel=ep8", *problem.fix.split())


def test_a_top_level_degree_beside_two_sides(refused: Callable[..., tuple[Problem, ...]]) -> None:
    engram, expert = "parallel.engram=host", "parallel.expert=2"
    problems = refused("hardware=gb300", *DEGREES, engram, expert)
    assert [problem.asked for problem in problems] == [expert, engram]
    assert problems[1].fix == "deploy.prefill.parallel.engram=host deploy.decode.parallel.engram=host"


def test_the_untouched_top_level_is_no_fault(plan_of: PlanOf, spec_of: Callable[..., object]) -> None:
    assert plan_of("hardware=gb300", *DEGREES, "parallel=single")
    assert spec_of("parallel=single").parallel == UNTOUCHED  # type: ignore[attr-defined]
    assert plan_of().choices["hardware"] == UNTOUCHED_CHIP


def test_a_chip_that_no_side_takes(refused: Callable[..., tuple[Problem, ...]], plan_of: PlanOf) -> None:
    both = ("hardware@deploy.prefill.hardware=gb300", "hardware@deploy.decode.hardware=gb200")
    (problem,) = refused(*DEGREES, *both, "hardware=h200")
    assert problem.asked == "hardware=h200"
    assert plan_of(*DEGREES, *both).hardware.option == "gb300"


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (("parallel.attention_dp=1000000000",), "parallel.attention_dp=65536"),
        (("parallel.context=500000", "parallel.attention_dp=4"), "parallel.context=16384"),
        ((*DEGREES, "deploy.decode.replicas=10000"), "deploy.decode.replicas=1024"),
    ],
)
def test_more_ranks_than_can_be_listed(
    refused: Callable[..., tuple[Problem, ...]], overrides: tuple[str, ...], fix: str
) -> None:
    (problem,) = refused("model=v41_tiny", *overrides)
    assert problem.fix == fix


def test_degrees_with_an_option_of_their_own(spec_of: Callable[..., object]) -> None:
    for degree, option in OPTIONS.items():
        parallel = spec_of(f"parallel={option}").parallel  # type: ignore[attr-defined]
        assert (parallel.attention_dp, parallel.expert) == (degree, degree)
