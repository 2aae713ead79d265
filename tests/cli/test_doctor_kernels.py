"""`deepinfer doctor` on kernels: what kernels=triton and kernels=deepseek lack on faked machines, and what to type."""

from typing import Any

import pytest

from deepinfer.cli.doctor_kernels import CAPABILITY, kernel_findings
from deepinfer.config.libraries import LIBRARIES
from deepinfer.config.probes import Device, MachineFacts
from deepinfer.interfaces.kernel_packages import KERNEL_PACKAGES
from deepinfer.plan.prerequisites import Finding


def machine(capability: str = "10.0", **changes: Any) -> MachineFacts:
    """One GPU and every library there is, but for the namesakes of DeepSeek's packages."""
    device = Device(vendor="nvidia", name="NVIDIA GPU", compute_capability=capability)
    facts: dict[str, Any] = {
        "system": "linux",
        "architecture": "x86_64",
        "python": "3.12.4",
        "cores": 64,
        "memory_bytes": 10**12,
        "available_bytes": 10**12,
        "devices": (device,) if capability else (),
        "toolkits": {"driver": "580.95.05"},
        "libraries": {
            library.name: library.at_least or "1.0" for library in LIBRARIES if library.name != "sgl-flash-mla"
        },
    }
    return MachineFacts(**facts | changes)


def lacking(option: str, facts: MachineFacts) -> list[Finding]:
    found = [finding for finding in kernel_findings(facts)[option] if not finding.met]
    assert all(finding.how for finding in found)
    return found


CAPABLE = (("triton", "9.0"), ("deepseek", "10.0"), ("deepseek", "10.3"))


@pytest.mark.parametrize(("option", "capability"), CAPABLE)
def test_an_equipped_machine_lacks_nothing(option: str, capability: str) -> None:
    assert lacking(option, machine(capability)) == []


def test_a_blackwell_gpu_is_not_enough_for_kernels_in_hoppers_instructions() -> None:
    (finding,) = lacking("triton", machine("10.3"))
    assert (finding.what, finding.needs) == ("GPU", "sm90 (compute capability 9.0)") and "of sm90;" in finding.how


@pytest.mark.parametrize(("option", "capability"), CAPABLE[:2])
def test_each_thing_missing_is_found_with_its_remedy(option: str, capability: str) -> None:
    full = machine(capability)
    for finding in kernel_findings(full)[option]:
        changes: dict[str, Any] = {"GPU": {"devices": ()}, "driver": {"toolkits": {"driver": "570.1"}}}.get(
            finding.what, {"libraries": {name: v for name, v in full.libraries.items() if name != finding.what}}
        )
        first = lacking(option, machine(capability, **changes))[0]
        assert first.what == finding.what and first.needs


def test_a_hopper_gpu_has_our_kernels_and_not_deepseeks() -> None:
    hopper = machine("9.0")
    found = lacking("deepseek", hopper)
    assert {finding.what for finding in found} == {"GPU", *(known.distribution for known in KERNEL_PACKAGES)}
    assert "sm100 (compute capability 10.0)" in found[0].needs and found[0].found == "NVIDIA GPU (sm90)"
    for finding in found[1:]:
        assert "built for sm100" in finding.found and "here sm90" in finding.found and "kernels=auto" in finding.how


def test_the_same_import_name_of_another_distribution_is_told_apart() -> None:
    libraries = {name: version for name, version in machine().libraries.items() if name != "deepinfer-flashmla"}
    (finding,) = lacking("deepseek", machine(libraries=libraries | {"sgl-flash-mla": "1.0.0"}))
    assert "sgl-flash-mla 1.0.0" in finding.found and "flash_mla" in finding.found
    assert finding.how.startswith("pip uninstall sgl-flash-mla, then pip install")


def test_a_cpu_build_of_torch_is_named() -> None:
    (finding,) = lacking("triton", machine("9.0", libraries=machine().libraries | {"torch": "2.13.0+cpu"}))
    assert finding.what == "torch" and "CUDA build" in finding.needs


def test_every_architecture_of_a_backend_has_its_compute_capability() -> None:
    for findings in kernel_findings(machine("")).values():
        assert findings[0].what == "GPU" and not findings[0].met and findings[0].found == ""
    assert all(set(known.architectures) <= CAPABILITY.keys() | {"ascend950"} for known in KERNEL_PACKAGES)
