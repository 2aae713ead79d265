"""Whether this machine can carry out a plan, in one sentence where it cannot."""

from deepinfer.config.facts import Facts, is_chip
from deepinfer.config.probes import MachineFacts
from deepinfer.plan.floors import found_version, meets
from deepinfer.plan.types import Floor, Plan


def missing(plan: Plan, facts: Facts) -> str | None:
    """What the plan needs and what this machine has, as one sentence; None where nothing is missing.

    Looks at devices, their memory, toolkits and libraries; a plan for a virtual chip needs none of them.
    """
    if plan.hardware.kind == "virtual":
        return None
    machine, ranks = facts.machine, plan.layout.num_ranks
    on_cpu = plan.hardware.kind == "cpu"
    fitting = _fitting_devices(plan, machine)
    lacking = [floor for floor in plan.floors if not meets(found_version(floor.what, machine), floor.at_least)]
    if not lacking and (on_cpu or fitting >= ranks):
        return None
    needs = [] if on_cpu else [f"{ranks} × {plan.hardware.name}"]
    needs += [_needed(floor) for floor in plan.floors]
    has = [] if on_cpu else [_devices(machine, fitting, plan.hardware.name)]
    has += [_found(floor, machine) for floor in plan.floors]
    return f"This plan needs {_and(needs)}; this machine has {_and(has)}."


def _fitting_devices(plan: Plan, machine: MachineFacts) -> int:
    """Devices of the right kind with room for the fullest rank; a device whose memory is unknown counts."""
    need = max(memory.device_bytes for memory in plan.memory)
    return sum(
        is_chip(device, plan.hardware.name, plan.hardware.architecture)
        and (not device.memory_bytes or device.memory_bytes >= need)
        for device in machine.devices
    )


def _devices(machine: MachineFacts, fitting: int, name: str) -> str:
    if fitting:
        return f"{fitting} × {name}"
    if machine.devices:
        return f"{len(machine.devices)} × {machine.devices[0].name}, which is another device or too small"
    cores = f"{machine.cores} CPU core{'s' * (machine.cores != 1)}"
    return f"no accelerator ({cores}, {machine.memory_bytes / 1e9:.0f} GB of memory)"


def _needed(floor: Floor) -> str:
    if floor.what == "os":
        return floor.at_least.capitalize()
    return f"{floor.what} ≥ {floor.at_least}" if floor.at_least else floor.what


def _found(floor: Floor, machine: MachineFacts) -> str:
    version = found_version(floor.what, machine)
    if floor.what == "os":
        return version.capitalize()
    return f"{floor.what} {version}" if version else f"no {floor.what}"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
