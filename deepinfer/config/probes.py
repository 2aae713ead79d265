"""Facts of this machine: processor, memory, accelerators, toolkits.

Read from /proc and vendors' tools; no device is opened.
"""

import re

from msgspec import Struct

from deepinfer.config.libraries import LIBRARIES
from deepinfer.config.machine import Host, Machine

MIB = 2**20
_SMI_QUERY = "--query-gpu=name,memory.total,memory.free,compute_cap,driver_version"
_NPU_NAME = re.compile(r"\b(?:Ascend[ _]?)?(?:310|910|950)\w*", re.IGNORECASE)
_NPU_MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")
_VERSION = re.compile(r"\d+(?:\.\d+)+|\d+")
_UNLIMITED_BYTES = 2**60  # cgroup v1 writes a number near 2**63 for "no limit"


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator as its vendor's tool names it; 0 bytes where the tool did not say."""

    vendor: str  # nvidia, huawei
    name: str
    memory_bytes: int = 0
    free_bytes: int = 0
    compute_capability: str = ""


class MachineFacts(Struct, frozen=True, kw_only=True):
    """What a plan and the doctor may know of a machine. Versions are text; a missing tool or package has no key."""

    system: str
    architecture: str
    python: str
    cores: int
    memory_bytes: int
    available_bytes: int  # what could be taken now without swapping
    devices: tuple[Device, ...] = ()
    toolkits: dict[str, str] = {}  # driver, cuda, cann, gcc → version
    libraries: dict[str, str] = {}  # distribution → version


def probe_machine(machine: Machine | None = None) -> MachineFacts:
    """Look at `machine`, this one by default."""
    machine = machine or Host()
    total, available = _memory(machine)
    devices, driver = _nvidia(machine)
    devices += _ascend(machine)
    found = {"driver": driver, "cuda": _cuda(machine), "cann": _cann(machine), "gcc": _gcc(machine)}
    versions = {library.name: machine.version(library.name) for library in LIBRARIES}
    return MachineFacts(
        system=machine.system,
        architecture=machine.architecture,
        python=machine.python,
        cores=machine.cores,
        memory_bytes=total,
        available_bytes=available,
        devices=tuple(devices),
        toolkits={name: version for name, version in found.items() if version},
        libraries={name: version for name, version in versions.items() if version},
    )


def _memory(machine: Machine) -> tuple[int, int]:
    """Total and available bytes, the smaller of the machine's and the container's; 0, 0 where nothing tells."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB", machine.read("/proc/meminfo") or "", re.MULTILINE)
    fields = {name: int(kib) * 1024 for name, kib in lines}
    total = fields.get("MemTotal", 0)
    available = fields.get("MemAvailable", fields.get("MemFree", 0))
    limit, used = _container_limit(machine)
    if limit is None or (total and limit >= total):
        return total, available
    return limit, min(available or limit, max(0, limit - used))


def _container_limit(machine: Machine) -> tuple[int | None, int]:
    """Limit and use of the control group, v2 then v1; None where there is no limit."""
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit = (machine.read(limit_file) or "").strip()
        if limit.isdecimal() and int(limit) < _UNLIMITED_BYTES:
            used = (machine.read(used_file) or "").strip()
            return int(limit), int(used) if used.isdecimal() else 0
    return None, 0


def _nvidia(machine: Machine) -> tuple[list[Device], str | None]:
    if not (machine.find("/dev/nvidia[0-9]*") or machine.find("/proc/driver/nvidia/gpus/*")):
        return [], None  # asking nvidia-smi takes a second; without a device node it can only say no
    text = machine.run("nvidia-smi", _SMI_QUERY, "--format=csv,noheader,nounits") or ""
    devices, driver = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            name, total, free, capability, driver = cells
            devices.append(
                Device(
                    vendor="nvidia",
                    name=name,
                    memory_bytes=_mib(total),
                    free_bytes=_mib(free),
                    compute_capability=capability,
                )
            )
    return _visible(devices, machine.foreign.cuda_visible_devices), driver


def _ascend(machine: Machine) -> list[Device]:
    if not machine.find("/dev/davinci[0-9]*"):
        return []
    devices: list[Device] = []
    # one or two table rows a chip: its name in the first, "used / total" of its memory in the first or second
    for line in (machine.run("npu-smi", "info") or "").splitlines():
        if "Process id" in line:
            break
        if not line.startswith("|"):
            continue
        name = _NPU_NAME.search(line)
        if name and "npu-smi" not in line and not re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:", line, re.IGNORECASE):
            devices.append(Device(vendor="huawei", name=name.group()))
        sizes = [(int(used), int(total)) for used, total in _NPU_MEMORY.findall(line) if int(total) > 1024]
        if sizes and devices and not devices[-1].memory_bytes:
            used, total = sizes[-1]
            devices[-1] = Device(
                vendor="huawei", name=devices[-1].name, memory_bytes=total * MIB, free_bytes=(total - used) * MIB
            )
    return _visible(devices, machine.foreign.ascend_visible_devices)


def _visible(devices: list[Device], chosen: str | None) -> list[Device]:
    """Only those that CUDA_VISIBLE_DEVICES or its Ascend twin leaves; ids that are not numbers leave all (UUIDs)."""
    if chosen is None:
        return devices
    ids = [text.strip() for text in chosen.split(",") if text.strip()]
    if not all(re.fullmatch(r"-?\d+", text) for text in ids):
        return devices
    kept = []
    for text in ids:
        if not 0 <= int(text) < len(devices):
            break  # CUDA ignores everything behind the first invalid id
        kept.append(devices[int(text)])
    return kept


def _cuda(machine: Machine) -> str | None:
    home = machine.foreign.cuda_home or "/usr/local/cuda"
    text = machine.run(machine.which("nvcc") or f"{home}/bin/nvcc", "--version")
    found = re.search(r"release (\d+\.\d+)", text or "")
    return found.group(1) if found else None


def _cann(machine: Machine) -> str | None:
    homes = [machine.foreign.ascend_home] if machine.foreign.ascend_home else []
    for home in (*homes, "/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest"):
        text = machine.read(f"{home}/{machine.architecture}-linux/ascend_toolkit_install.info")
        found = re.search(r"^version=(\S+)", text or "", re.MULTILINE)
        if found:
            return found.group(1)
    return None


def _gcc(machine: Machine) -> str | None:
    found = _VERSION.search(machine.run("gcc", "-dumpfullversion", "-dumpversion") or "")
    return found.group() if found else None


def _mib(text: str) -> int:
    return int(text) * MIB if text.isdecimal() else 0
