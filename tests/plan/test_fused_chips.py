"""Plans for GPUs that this version runs on: made of fused operations, refused by name where those cannot do what is asked."""

from collections.abc import Callable

import pytest

from deepinfer.config.errors import ExitCode, Refused
from deepinfer.engine.build import build_graph
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "hardware=h200")


def implementations(plan: Plan) -> dict[str, str]:
    return {node.name: node.implementation.rpartition(":")[2] for node in plan.graph}


def test_the_graph_is_that_of_a_device(plan_of: PlanOf) -> None:
    named = implementations(plan_of(*TINY, "speculation=dspark"))
    assert (named["model"], named["executor"], named["drafter"]) == ("FusedModel", "DeviceExecutor", "DeviceDSpark")
    assert (named["weights"], named["ops.triton"]) == ("load_stored", "device_ops")
    assert implementations(plan_of(*TINY, "kernels=reference"))["ops.reference"] == "twins"
    cpu = implementations(plan_of("model=v41_tiny", "hardware=cpu", "speculation=dspark"))
    assert (cpu["model"], cpu["executor"], cpu["drafter"]) == ("V41Model", "LocalExecutor", "DSpark")
    blackwell = implementations(plan_of("model=v41_tiny", "hardware=b200"))
    assert (blackwell["model"], blackwell["executor"]) == ("V41Model", "LocalExecutor")


def test_weights_stay_packed_and_padded_rows_have_a_state(plan_of: PlanOf) -> None:
    for kernels in ("triton", "reference"):
        plan = plan_of(*TINY, f"kernels={kernels}")
        assert {choice.resident for choice in plan.ops} == {"packed"}
        slots = plan.memory[0].item("state").num_bytes // plan.cache.padded_state_bytes
        assert slots == plan.memory[0].num_state_slots + 1
    plan = plan_of("model=v41_tiny", "hardware=b200")
    assert plan.memory[0].item("state").num_bytes == plan.memory[0].num_state_slots * plan.cache.padded_state_bytes


@pytest.mark.parametrize(
    ("asked", "named", "fix"),
    [
        ("kernels.ops.swiglu=reference", "kernels.ops.swiglu=reference", "kernels=triton kernels.ops={}"),
        ("model.numerics=none", "model.numerics=none", "model.numerics=full"),
    ],
)
def test_what_fused_operations_cannot_do_is_planned_and_refused_by_name(
    plan_of: PlanOf, asked: str, named: str, fix: str
) -> None:
    plan = plan_of(*TINY, asked)
    assert plan.unbuilt == (named,)
    with pytest.raises(Refused) as caught:
        build_graph(plan)
    (problem,) = caught.value.problems
    assert (problem.asked, problem.fix, problem.code) == (named, fix, ExitCode.OTHER)
    assert plan_of(*TINY).unbuilt == () and plan_of(*TINY, fix.partition(" ")[0]).unbuilt == ()


def test_our_kernels_compute_in_bfloat16(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "model.dtype=float32")
    assert {choice.backend for choice in plan.ops} == {"reference"}


def test_blackwell_is_planned_and_refused_by_its_architecture(plan_of: PlanOf) -> None:
    plan = plan_of("model=v41_tiny", "hardware=b200")
    assert plan.unbuilt == ("hardware of architecture sm100",)
    with pytest.raises(Refused, match="hardware=b200\n    this version has no code to run it"):
        build_graph(plan_of("model=v41_tiny", "hardware=b200", "kernels=reference"))


def test_a_plan_names_the_general_kernels_and_a_run_counts_them(plan_of: PlanOf) -> None:
    pytest.importorskip("triton")
    from deepinfer.engine.build_device import _ops

    named = [note for note in plan_of(*TINY).notes if "a general kernel computes" in note]
    (said,) = _ops(plan_of(*TINY))[1]
    assert said.startswith(f"{len(named)} groups of operations") and "deepinfer plan names them" in said
    for others in ((*TINY, "kernels=reference"), ("model=v41_tiny", "hardware=cpu"), ("hardware=h200", "parallel=ep8")):
        assert not any("general kernel" in note for note in plan_of(*others).notes), others
