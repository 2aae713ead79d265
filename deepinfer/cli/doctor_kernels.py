"""What kernels=triton and kernels=deepseek ask of a machine: its GPU, driver and torch, and each package and its build."""

from collections.abc import Iterator

import msgspec

from deepinfer.config.libraries import BY_NAME as LIBRARY
from deepinfer.config.probes import Device, MachineFacts
from deepinfer.interfaces.kernel_packages import BY_DISTRIBUTION
from deepinfer.plan.catalog import BY_NAME as BACKEND
from deepinfer.plan.catalog import HOPPER, Backend
from deepinfer.plan.prerequisites import Finding, cuda_torch, floor_finding, library_finding

DRIVER = "580"  # brings CUDA 13, which the wheels of torch are built with
OPTIONS = ("triton", "deepseek")  # of kernels=, those that want a GPU
CAPABILITY = {"sm90": "9.0", "sm100": "10.0", "sm103": "10.3"}


def kernel_findings(machine: MachineFacts, backends: tuple[str, ...] = OPTIONS) -> dict[str, tuple[Finding, ...]]:
    """Option of kernels= → everything it asks for, met or not."""
    return {name: tuple(_findings(BACKEND[name], machine)) for name in OPTIONS if name in backends}


def architecture_of(device: Device) -> str:
    """sm90, sm100, …, or empty where the vendor's tool did not tell."""
    return f"sm{device.compute_capability.replace('.', '')}" if device.compute_capability else ""


def _findings(backend: Backend, machine: MachineFacts) -> Iterator[Finding]:
    yield _gpu(backend, machine)
    yield floor_finding("driver", DRIVER, machine)
    yield cuda_torch(machine)
    for name in backend.libraries:
        yield _package(name, machine)


def _gpu(backend: Backend, machine: MachineFacts) -> Finding:
    whole = (HOPPER,) if backend.hopper_only else backend.architectures  # where all its ops run
    fitting = [device for device in machine.devices if architecture_of(device) in whole]
    named = dict.fromkeys(f"{device.name} ({architecture_of(device) or device.vendor})" for device in machine.devices)
    chips = " or ".join(f"{name} (compute capability {CAPABILITY[name]})" for name in whole)
    how = "" if fitting else f"run it on a machine with a GPU of {' or '.join(whole)}; kernels=auto runs here"
    return Finding(what="GPU", needs=chips, found=", ".join(named), met=bool(fitting), how=how)


def _package(name: str, machine: MachineFacts) -> Finding:
    """A distribution, in a version that will do; of DeepSeek's also whether its build is for this machine's GPU."""
    finding = library_finding(LIBRARY[name], machine)
    known = BY_DISTRIBUTION.get(name)
    if known is None:
        return finding
    finding = msgspec.structs.replace(finding, needs=f"{finding.needs}; written against {known.version}")
    if not finding.found:
        for other in known.namesakes:
            if version := machine.libraries.get(other):
                found = f"{other} {version}, which is imported by the same name {known.name}, for other chips"
                how = f"pip uninstall {other}, then {finding.how}"
                return msgspec.structs.replace(finding, found=found, how=how)
        return finding
    here = [architecture_of(device) for device in machine.devices]
    if any(one in known.architectures for one in here):
        return finding
    found = f"{finding.found}, built for {', '.join(known.architectures)}; here {', '.join(dict.fromkeys(here)) or 'no GPU'}"
    how = f"nothing to install: on this machine kernels=auto; {name} needs {' or '.join(known.architectures)}"
    return msgspec.structs.replace(finding, found=found, met=False, how=how)
