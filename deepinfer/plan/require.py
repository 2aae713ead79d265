"""Whether this machine can carry out a plan, in one sentence where it cannot."""

from collections.abc import Iterator, Sequence

from deepinfer.config.facts import Facts, is_chip
from deepinfer.config.libraries import BY_NAME
from deepinfer.config.probes import MachineFacts
from deepinfer.config.runnable import plan_only
from deepinfer.plan.floors import found_version, meets
from deepinfer.plan.types import Floor, Plan, RolePlan


def missing(plan: Plan, facts: Facts) -> str | None:
    """What the plan needs and what this machine has, as one sentence; None where nothing is missing.

    Looks at devices, their memory, toolkits and libraries; roles on a virtual chip need none of them.
    """
    machine = facts.machine
    real = _real(plan)
    groups = _by_chip(real)
    floors = list({(floor.what, floor.at_least): floor for role in real for floor in role.floors}.values())
    fitting = [_fitting_devices(plan, roles, machine) for roles in groups]
    lacking = [floor for floor in floors if not meets(found_version(floor.what, machine), floor.at_least)]
    if not lacking and all(count >= _num_ranks(roles) for count, roles in zip(fitting, groups, strict=True)):
        return None
    needs = [f"{_num_ranks(roles)} × {roles[0].hardware.name}" for roles in groups]
    needs += [_needed(floor) for floor in floors]
    has = [_devices(machine, count, roles[0].hardware.name) for count, roles in zip(fitting, groups, strict=True)]
    has += [_found(floor, machine) for floor in floors]
    remedies = "; ".join(_remedies(real, lacking, all(fitting)))
    told = f"This plan needs {_and(needs)}; this machine has {_and(list(dict.fromkeys(has)))}"
    return f"{told} ({remedies})." if remedies else f"{told}."


def has_devices(plan: Plan, facts: Facts) -> bool:
    """Whether at least one device of every chip is here, with room for the fullest rank."""
    return all(_fitting_devices(plan, roles, facts.machine) for roles in _by_chip(_real(plan)))


def _remedies(roles: Sequence[RolePlan], lacking: Sequence[Floor], here: bool) -> Iterator[str]:
    """How to get what a chip lacks that this version has code for; of another one nothing would help. `here`: there are
    devices, if too few."""
    chips = [role.hardware for role in roles if role.hardware.kind != "cpu"]
    if (here and not lacking) or not chips or any(plan_only(chip.kind, chip.architecture) for chip in chips):
        return
    libraries = [BY_NAME[floor.what] for floor in lacking if floor.what in BY_NAME]
    for how in dict.fromkeys(library.get for library in libraries):
        yield f"{how} brings {_and([library.name for library in libraries if library.get == how])}"
    yield f"deepinfer doctor hardware={chips[0].option} tells how to get each"


def _real(plan: Plan) -> list[RolePlan]:
    """Roles on chips that exist."""
    return [role for role in plan.layout.roles if role.hardware.kind != "virtual"]


def _by_chip(roles: Sequence[RolePlan]) -> list[list[RolePlan]]:
    """The roles of each chip other than a CPU."""
    names = dict.fromkeys(role.hardware.name for role in roles if role.hardware.kind != "cpu")
    return [[role for role in roles if role.hardware.name == name] for name in names]


def _num_ranks(roles: Sequence[RolePlan]) -> int:
    return sum(role.num_ranks for role in roles)


def _fitting_devices(plan: Plan, roles: Sequence[RolePlan], machine: MachineFacts) -> int:
    """Devices of the right kind with room for the fullest rank; a device whose memory is unknown counts."""
    names, chip = {role.name for role in roles}, roles[0].hardware
    need = max(memory.device_bytes for memory in plan.memory if memory.role in names)
    return sum(
        is_chip(device, chip.name, chip.architecture) and (not device.memory_bytes or device.memory_bytes >= need)
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
