"""Which backend an op takes, and whether the catalogue tells the truth about what this version has."""

import dataclasses
import importlib.util
from collections.abc import Callable
from importlib import import_module

import pytest

from deepinfer.config.facts import load_chip
from deepinfer.config.libraries import BY_NAME as LIBRARY
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.record import Ops
from deepinfer.ops.reference import reference
from deepinfer.plan.catalog import BACKENDS, CLASS_OP, OPS, Backend, unfit
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")


def test_ops_are_the_fields_of_the_record() -> None:
    assert list(OPS) == [field.name for field in dataclasses.fields(Ops) if field.name not in ("name", "dtypes")]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_a_backend_is_in_this_version_when_it_makes_a_record_of_ops(backend: Backend) -> None:
    """Our kernels are a record of fused operations, which a GPU takes in the place of another's."""
    module, _, attribute = backend.implementation.partition(":")
    assert backend.in_this_version == (importlib.util.find_spec(module) is not None)
    if backend.in_this_version:
        record = getattr(import_module(module), attribute)()
        assert record.name == {"triton": "hopper"}.get(backend.name, backend.name)
        assert isinstance(record, DeviceOps if backend.name == "triton" else Ops)
    if backend.fused:
        module, _, attribute = backend.fused.partition(":")
        assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_what_a_backend_names_exists(backend: Backend) -> None:
    assert set(backend.libraries) <= LIBRARY.keys()
    assert {*backend.lacks, *backend.hopper_only} <= OPS.keys()


@pytest.mark.parametrize("hardware", ["b200", "gb300"])
def test_hoppers_own_instructions_are_refused_on_blackwell(plan_of: PlanOf, hardware: str) -> None:
    with pytest.raises(PlanErrors, match=r"(?s)kernels=triton.*routed_experts with Hopper's own .*, the chip is sm10"):
        plan_of(f"hardware={hardware}", "parallel=ep64", "kernels=triton")
    with pytest.raises(PlanErrors, match=r"triton computes attention with Hopper's own instructions \(sm90\)"):
        plan_of(f"hardware={hardware}", "parallel=ep64", "kernels.ops.attention=triton")
    assert plan_of(f"hardware={hardware}", "parallel=ep64", "kernels.ops.swiglu=triton").ops


def test_native_lacks_what_it_leaves_to_the_twins() -> None:
    twins, native = reference(), import_module("deepinfer.ops.native").native()
    (row,) = [row for row in BACKENDS if row.name == "native"]
    assert row.lacks == tuple(op for op in OPS if getattr(native, op) is getattr(twins, op))


def test_native_is_for_float32(plan_of: PlanOf) -> None:
    assert {choice.backend for choice in plan_of(*TINY).ops} == {"native", "reference"}
    assert {choice.backend for choice in plan_of(*TINY, "model.dtype=float64").ops} == {"reference"}
    assert {choice.backend for choice in plan_of(*TINY, "kernels=reference").ops} == {"reference"}


def test_classes_of_weights_follow_ops() -> None:
    assert set(CLASS_OP.values()) <= OPS.keys()


@pytest.mark.parametrize(
    ("hardware", "backend", "fits"),
    [
        ("cpu", "reference", True),
        ("cpu", "native", True),
        ("h200", "native", False),
        ("cpu", "triton", False),
        ("h200", "triton", True),
        ("h200", "deepseek", False),
        ("gb300", "deepseek", True),
        ("ascend950", "ascend", True),
        ("ascend950", "triton", False),
        ("virtual", "reference", True),
    ],
)
def test_architectures_decide(hardware: str, backend: str, fits: bool) -> None:
    (row,) = [row for row in BACKENDS if row.name == backend]
    reason = unfit(row, "rms_norm", load_chip(hardware), "bfloat16" if backend == "triton" else "float32")
    assert (reason == "") is fits
    assert fits or backend in reason


def test_auto_takes_the_first_of_the_chips_list(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=gb200", "parallel=ep8")
    backends = {choice.op: choice.backend for choice in plan.ops}
    assert backends["pool_pairs"] == "triton"  # DeepSeek's libraries lack it
    assert {backend for op, backend in backends.items() if op != "pool_pairs"} == {"deepseek"}
    (choice,) = [choice for choice in plan.ops if choice.op == "pool_pairs"]
    assert choice.runner_up == "deepseek has no such op"


def test_every_choice_has_a_reason(plan_of: PlanOf) -> None:
    for plan in (plan_of(*TINY), plan_of("hardware=h200", "parallel=ep8")):
        assert [choice.op for choice in plan.ops] == list(OPS)
        assert all(choice.reason for choice in plan.ops)


def test_a_pin_overrides_one_op(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=gb200", "parallel=ep8", "kernels.ops.swiglu=triton")
    pinned = {choice.op: choice for choice in plan.ops}
    assert (pinned["swiglu"].backend, pinned["linear"].backend) == ("triton", "deepseek")
    assert pinned["swiglu"].reason == "pinned by kernels.ops.swiglu"


def test_weights_lie_as_the_ops_that_read_them_want(plan_of: PlanOf) -> None:
    packed = plan_of("hardware=gb300", "parallel=ep64").memory[0]
    twins = plan_of("hardware=gb300", "parallel=ep64", "kernels=reference").memory[0]
    assert packed.item("experts").num_bytes == 6 * 40 * 18_800_640
    assert twins.item("experts").num_bytes == 6 * 40 * 3 * 5120 * 2304 * 2
    assert twins.item("embed").num_bytes == packed.item("embed").num_bytes  # BF16 either way
