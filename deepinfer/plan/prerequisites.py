"""What each hardware target and each library asks of a machine, what the machine has, and how to get the rest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.facts import is_chip
from deepinfer.config.libraries import BY_NAME as LIBRARY
from deepinfer.config.libraries import LIBRARIES, Library
from deepinfer.config.probes import MachineFacts
from deepinfer.config.runnable import plan_only
from deepinfer.plan.catalog import BY_NAME as BACKEND
from deepinfer.plan.floors import found_version, meets
from deepinfer.plan.types import Frozen, Plan

GET = {  # how to get what is no Python distribution
    "os": "run it on Linux: a machine, a virtual machine or a container",
    "python": "install Python {at_least} (uv python install {at_least}, or your system's package), then make setup",
    "gcc": "apt-get install gcc-{at_least} g++-{at_least}, and let gcc mean that one",
    "cuda": "install the CUDA toolkit {at_least}: https://developer.nvidia.com/cuda-downloads",
    "driver": "install NVIDIA driver {at_least} or newer: https://www.nvidia.com/drivers",
    "cann": "install CANN {at_least} and source its set_env.sh: https://www.hiascend.com/cann",
}
DEVICE = "device"
ASCEND = "ascend"  # the kind of chip, and the extra of pyproject.toml with its libraries
LIBRARY_OF = {"grammar=llguidance": "llguidance", "grammar=xgrammar": "xgrammar"}  # options with a library of their own


class Finding(Frozen, frozen=True, kw_only=True):
    """One prerequisite of one target. `found` is empty where the thing is not there, `how` where nothing is to do."""

    what: str
    needs: str
    found: str
    met: bool
    how: str = ""


class Target(Frozen, frozen=True, kw_only=True):
    """One option of conf/hardware against one machine. `built` says whether this version has code to run there."""

    option: str
    name: str
    about: str
    built: bool
    findings: tuple[Finding, ...]

    @property
    def ready(self) -> bool:
        return self.built and all(finding.met for finding in self.findings)


def targets(sheets: Mapping[str, Mapping[str, Any]], machine: MachineFacts) -> tuple[Target, ...]:
    """Every chip sheet (option → plain data of conf/hardware) held against a machine. Virtual chips need nothing."""
    return tuple(_target(option, sheet, machine) for option, sheet in sheets.items() if sheet["kind"] != "virtual")


def libraries(machine: MachineFacts) -> tuple[tuple[Library, Finding], ...]:
    """Every distribution that deepinfer uses or can use."""
    return tuple((library, library_finding(library, machine)) for library in LIBRARIES)


def library_finding(library: Library, machine: MachineFacts, extra: str = "") -> Finding:
    """Whether a distribution is there in a version that will do; `extra`: to be had by another one than its own."""
    found = machine.libraries.get(library.name, "")
    met = meets(found, library.at_least) and not (library.below and meets(found, library.below))
    floor = [f"≥ {library.at_least}"] if library.at_least else []
    ceiling = [f"< {library.below}"] if library.below else []
    needs = " ".join([*floor, *ceiling]) or "any"
    return Finding(
        what=library.name, needs=needs, found=found, met=met, how="" if met else library.get_by(extra or library.extra)
    )


def cuda_torch(machine: MachineFacts) -> Finding:
    """torch in a version that will do, and not the CPU build: there are GPUs to drive."""
    finding = library_finding(LIBRARY["torch"], machine)
    if not finding.found.endswith("+cpu"):
        return finding
    how = "reinstall torch from PyPI, whose wheels for Linux are CUDA builds"
    return msgspec.structs.replace(finding, needs=f"{finding.needs}, CUDA build", met=False, how=how)


def missing_libraries(plan: Plan, machine: MachineFacts) -> list[Problem]:
    """The refusals of options of a plan whose library is not on this machine."""
    found = []
    for option in dict.fromkeys(node.option for node in plan.graph if node.option in LIBRARY_OF):
        finding = library_finding(LIBRARY[LIBRARY_OF[option]], machine)
        if not finding.met:
            has = f"this machine has {finding.what} {finding.found}" if finding.found else f"no {finding.what} here"
            why = f"it compiles the grammars, and {finding.what} {finding.needs} is needed"
            found.append(Problem(asked=option, found=has, why=why, fix=finding.how, code=ExitCode.DEVICE))
    return found


def _target(option: str, sheet: Mapping[str, Any], machine: MachineFacts) -> Target:
    findings = []
    if sheet["kind"] != "cpu":
        findings.append(_device(sheet, machine))
    for facts in (sheet["platform"], sheet["toolkit"]):
        findings += [floor_finding(what, fact["value"], machine) for what, fact in facts.items()]
    findings.append(cuda_torch(machine) if sheet["kind"] == "cuda" else library_finding(LIBRARY["torch"], machine))
    names = dict.fromkeys(library for backend in sheet["op_backends"] for library in BACKEND[backend].libraries)
    extra = ASCEND if sheet["kind"] == ASCEND else ""  # the packages of Blackwell's are not for it
    findings += [library_finding(LIBRARY[name], machine, extra) for name in names]
    built = not plan_only(sheet["kind"], sheet["architecture"]["value"])
    return Target(option=option, name=sheet["name"], about=sheet["chips_note"], built=built, findings=tuple(findings))


def _device(sheet: Mapping[str, Any], machine: MachineFacts) -> Finding:
    architecture = sheet["architecture"]["value"]
    fitting = [device for device in machine.devices if is_chip(device, sheet["name"], architecture)]
    there = fitting or machine.devices
    found = ", ".join(f"{count} × {name}" for name, count in Counter(device.name for device in there).items())
    how = "" if fitting else f"run it on a machine with {sheet['name']}; deepinfer plan answers here"
    return Finding(what=DEVICE, needs=f"{sheet['name']} ({architecture})", found=found, met=bool(fitting), how=how)


def floor_finding(what: str, at_least: str, machine: MachineFacts) -> Finding:
    """Whether a toolkit, driver or platform is new enough."""
    found = found_version(what, machine)
    met = meets(found, at_least)
    needs = f"≥ {at_least}" if at_least[:1].isdigit() else at_least
    return Finding(what=what, needs=needs, found=found, met=met, how="" if met else GET[what].format(at_least=at_least))
