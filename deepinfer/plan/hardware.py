"""The chip of a role as a plan holds it: which one, how much of its memory may be used, how its devices are joined."""

from deepinfer.config.chips import Chip
from deepinfer.config.facts import is_chip
from deepinfer.config.probes import MachineFacts
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.types import HardwarePlan

CPU_SHARE = 0.9  # of what is free now: the rest is the interpreter's, the page cache's and other programs'
GIVEN = "as given"  # the source of a fact that was typed
DEVICE_SHARE = 0.92  # of a device: the rest goes to the driver's context, communication buffers and fragmentation


def hardware_plan(role: RoleCase, machine: MachineFacts, cpu_ranks: int) -> HardwarePlan:
    """The chip of every rank of `role`; `cpu_ranks` are the ranks on CPUs of the whole plan."""
    chip = role.chip
    per_node = _node_devices(chip, cpu_ranks)
    total, usable, measured = _memory(chip, machine, min(per_node, cpu_ranks))
    domain, devices = widest_link(chip)
    return HardwarePlan(
        kind=chip.kind,  # type: ignore[arg-type]
        option=role.option or chip.kind,
        name=chip.name,
        vendor=chip.vendor,
        architecture=chip.architecture.value,
        memory_bytes=total,
        usable_bytes=usable,
        measured=measured,
        domain=domain,
        domain_devices=devices,
        node_devices=per_node,
    )


def _node_devices(chip: Chip, cpu_ranks: int) -> int:
    """Ranks that share a node. A rank on a CPU is a process: all of them are of one machine, unless a number was given."""
    sheet = chip.node_devices
    return sheet.value if chip.kind != "cpu" or sheet.source == GIVEN else max(cpu_ranks, 1)


def _memory(chip: Chip, machine: MachineFacts, cpu_ranks: int) -> tuple[int, int, bool]:
    """Memory of one rank's device, what may be used of it, and whether it was measured. A number given wins.

    `cpu_ranks` share the memory of a CPU.
    """
    sheet = chip.memory_bytes
    given = sheet.source == GIVEN
    if chip.kind == "cpu":
        measured = not given and machine.available_bytes > 0
        total = machine.available_bytes if measured else sheet.value
        return total // cpu_ranks, int(total * CPU_SHARE) // cpu_ranks, measured
    name, architecture = chip.name, chip.architecture.value
    here = [device for device in machine.devices if device.memory_bytes and is_chip(device, name, architecture)]
    if given or not here:
        return sheet.value, int(sheet.value * DEVICE_SHARE), False
    smallest = min(here, key=lambda device: device.memory_bytes)
    free = min(device.free_bytes or device.memory_bytes for device in here)
    return smallest.memory_bytes, min(int(smallest.memory_bytes * DEVICE_SHARE), free), True


def widest_link(chip: Chip) -> tuple[str, int]:
    """The fastest link between devices and how many it joins; "" and 1 for a chip without one."""
    links = [(link.value, name, link.devices) for name, link in chip.links.items() if link.devices > 1]
    if not links:
        return "", 1
    _, name, devices = max(links)
    return name, devices
