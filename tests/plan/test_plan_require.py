"""What a plan needs against what a machine has: one sentence, or nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from deepinfer.config.env import Foreign
from deepinfer.config.errors import ExitCode
from deepinfer.config.facts import Facts
from deepinfer.config.probes import Device, MachineFacts, probe_machine
from deepinfer.plan.floors import meets
from deepinfer.plan.prerequisites import missing_libraries
from deepinfer.plan.require import missing
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")
NPU = Device(vendor="huawei", name="Ascend950DT_9582", memory_bytes=144 * 10**9)
H200 = Device(vendor="nvidia", name="NVIDIA H200", memory_bytes=150 * 10**9, compute_capability="9.0")
CUDA_CPP = {"cuda-bindings": "13.0.0", "nvidia-cuda-nvrtc": "13.0.88"}
PACKAGES = {"deepinfer-flashmla": "1.0.0", "tile-kernels": "2.1.0"}


def facts(**changes: Any) -> Facts:
    """A machine that can carry out every plan of these tests, unless changed."""
    machine: dict[str, Any] = {
        "system": "linux",
        "architecture": "aarch64",
        "python": "3.12.1",
        "cores": 192,
        "memory_bytes": 2 * 10**12,
        "available_bytes": 10**12,
        "devices": (NPU,) * 64,
        "toolkits": {"gcc": "13.3.0", "cann": "9.2.RC1", "driver": "580.95.05"},
        "libraries": {"torch-npu": "2.13.0rc1", "triton": "3.6.0", "numba": "0.61.2", **CUDA_CPP, **PACKAGES},
    }
    return Facts(machine=MachineFacts(**machine | changes), checkpoints={})


def test_nothing_is_missing_where_everything_is(plan_of: PlanOf) -> None:
    assert missing(plan_of("hardware=ascend950", "parallel=ep64"), facts()) is None


@pytest.mark.parametrize(
    ("changes", "needs", "has"),
    [
        ({"devices": ()}, "64 × Huawei Ascend 950DT", "no accelerator (192 CPU cores, 2000 GB of memory)"),
        ({"devices": (NPU,) * 8}, "64 × Huawei Ascend 950DT", "8 × Huawei Ascend 950DT"),
        ({"devices": (H200,) * 64}, "64 × Huawei Ascend 950DT", "64 × NVIDIA H200, which is another device"),
        ({"toolkits": {"gcc": "13.3.0"}}, "cann ≥ 9.2", "no cann"),
        ({"toolkits": {"gcc": "13.3.0", "cann": "8.5.0"}}, "cann ≥ 9.2", "cann 8.5.0"),
        ({"toolkits": {"gcc": "12.2.0", "cann": "9.2.0"}}, "gcc ≥ 13", "gcc 12.2.0"),
        ({"python": "3.11.9"}, "python ≥ 3.12", "python 3.11.9"),
        ({"system": "darwin"}, "Linux", "Darwin"),
        ({"libraries": PACKAGES}, "torch-npu ≥ 2.13", "no torch-npu"),
        ({"libraries": {"torch-npu": "2.13.0"}}, "tile-kernels ≥ 2.1", "no tile-kernels"),
    ],
)
def test_one_missing_thing_is_said(plan_of: PlanOf, changes: dict[str, Any], needs: str, has: str) -> None:
    sentence = missing(plan_of("hardware=ascend950", "parallel=ep64"), facts(**changes))
    assert sentence is not None and sentence.count(".\n") == 0 and sentence.endswith(".")
    asked, _, found = sentence.partition("; this machine has ")
    assert needs in asked and has in found


def test_a_device_too_small_for_a_rank_does_not_count(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=h200", "parallel=ep4")
    small = Device(vendor="nvidia", name="NVIDIA H100", memory_bytes=80 * 10**9, compute_capability="9.0")
    assert missing(plan, facts(devices=(H200,) * 4)) is None
    assert "too small" in str(missing(plan, facts(devices=(small,) * 4)))


def test_a_cpu_needs_its_python_and_numba(plan_of: PlanOf, machine: type) -> None:
    plan = plan_of(*TINY)
    assert missing(plan, facts(devices=(), toolkits={}, system="darwin")) is None
    assert "no numba" in str(missing(plan, facts(libraries={})))
    assert "python 3.10.2" in str(missing(plan, facts(python="3.10.2")))


def test_a_virtual_chip_needs_nothing(plan_of: PlanOf) -> None:
    bare = Facts(machine=probe_machine(_Bare()), checkpoints={})
    assert missing(plan_of("hardware=virtual", *TINY), bare) is None


class _Bare:
    """A machine that answers nothing."""

    system, architecture, python, cores, foreign = "plan9", "mips", "3.11.0", 1, Foreign()

    def read(self, path: str) -> None: ...

    def find(self, pattern: str) -> list[str]:
        return []

    def which(self, command: str) -> None: ...

    def run(self, *argv: str) -> None: ...

    def version(self, distribution: str) -> None: ...


@pytest.mark.parametrize(
    ("found", "floor", "met"),
    [
        ("13.0", "13.0", True),
        ("13", "13.0", True),
        ("12.9.2", "13.0", False),
        ("9.2.RC1", "9.2", True),
        ("9.1.9", "9.2", False),
        ("2.13.0+cu130", "2.11", True),
        ("3.9.0", "3.10", False),
        ("580.95.05", "580", True),
        ("", "1", False),
        ("1.0", "", True),
        ("", "", False),
        ("linux", "linux", True),
        ("darwin", "linux", False),
    ],
)
def test_versions(found: str, floor: str, met: bool) -> None:
    assert meets(found, floor) is met


@pytest.mark.parametrize(
    ("there", "found"), [({}, "no xgrammar here"), ({"xgrammar": "0.1.30"}, "this machine has xgrammar 0.1.30")]
)
def test_the_library_of_an_option_is_asked_for(plan_of: PlanOf, there: dict[str, str], found: str) -> None:
    plan = plan_of(*TINY, "hardware=cpu", "grammar=xgrammar")
    (problem,) = missing_libraries(plan, facts(libraries=there).machine)
    assert (problem.asked, problem.found, problem.code) == ("grammar=xgrammar", found, ExitCode.DEVICE)
    assert problem.fix.startswith("pip install ") and "xgrammar" in problem.fix
    assert not missing_libraries(plan, facts(libraries={"xgrammar": "0.2.1"}).machine)
    assert not missing_libraries(plan_of(*TINY, "hardware=cpu", "grammar=none"), facts(libraries={}).machine)
