"""What a plan may know besides the spec: this machine, the checkpoints in question, and the chip that `auto` found."""

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from deepinfer.config.chips import AutoHardware, Chip, CpuChip, Hardware
from deepinfer.config.cost_facts import CostFacts, probe_cost
from deepinfer.config.costs import Cost
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.headers import CheckpointFacts, read_checkpoint
from deepinfer.config.machine import Host, Machine
from deepinfer.config.paths import user_path
from deepinfer.config.probes import Device, MachineFacts, probe_machine
from deepinfer.config.specs import Disaggregated, Model, Spec
from deepinfer.config.workloads import TraceWorkload

FOLDER = "path"  # the key under which the checkpoint of model.path is found
SHIPPED = ("v41_tiny", "v41_flash")
NO_CHIPS = ("auto", "same")  # options of conf/hardware that stand for another one


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that was looked up. With equal spec and facts a plan is equal, wherever it is made."""

    machine: MachineFacts
    checkpoints: dict[str, CheckpointFacts]  # by model name, and FOLDER for model.path
    chip_option: str = ""  # which option of conf/hardware `auto` means here; empty where hardware is not auto
    chip: Chip | None = None
    cost: CostFacts = CostFacts()


def probe(spec: Spec, machine: Machine | None = None) -> Facts:
    """Look up what `resolve` needs for `spec`. Opens no device, reads no weights beyond a digest, uses no network."""
    _check_trace(spec)
    found = probe_machine(machine or Host())
    option, chip = _chip(spec.hardware, found)
    chips = [hardware for hardware in (chip, *_named_hardware(spec)) if isinstance(hardware, Chip)]
    cost = probe_cost(spec.cost, chips, chip_names)
    return Facts(machine=found, checkpoints=_checkpoints(spec.model), chip_option=option, chip=chip, cost=cost)


def _check_trace(spec: Spec) -> None:
    """Raise Refused for a trace that is not there."""
    path = spec.workload.path if isinstance(spec.workload, TraceWorkload) else None
    if path is not None and not user_path(path, "workload.path").is_file():
        raise Refused([Problem(asked=f"workload.path={path}", found="there is no such file")])


def grounds(spec: Spec) -> tuple[Model | Cost | Hardware | TraceWorkload, ...]:
    """What of a spec `probe` goes by: for specs that are alike in it, it finds the same."""
    traces = (spec.workload,) if isinstance(spec.workload, TraceWorkload) else ()
    return (spec.model, spec.cost, *_named_hardware(spec), *traces)


def _named_hardware(spec: Spec) -> tuple[Hardware, ...]:
    sides = (spec.deploy.prefill, spec.deploy.decode) if isinstance(spec.deploy, Disaggregated) else ()
    return (spec.hardware, *(side.hardware for side in sides))


def shipped_folder(name: str) -> Path:
    """Where the package keeps the config.json (and for v41_tiny the weights) of a model it knows."""
    return Path(str(resources.files("deepinfer") / "assets" / name))


def hardware_options() -> list[str]:
    """Names of the chips in conf/hardware, sorted."""
    return sorted(file.stem for file in _hardware_files() if file.stem not in NO_CHIPS)


def match_option(device: Device, options: list[str]) -> str | None:
    """The hardware option that a word of the device's name begins with: "NVIDIA H200 NVL" → h200, the longest of several.

    A word only: a GH200 is no H200 and a GB200 no B200.
    """
    name = re.sub(r"\bascend[ _]", "ascend", device.name.lower())
    if device.vendor == "huawei" and "ascend" not in name:
        name = f"ascend{name}"
    words = re.split(r"[\s_]+", name)
    return max((option for option in options if any(word.startswith(option) for word in words)), key=len, default=None)


def is_chip(device: Device, chip_name: str, architecture: str) -> bool:
    """Whether a device is the chip that a sheet describes. The one rule for plans, runs and the doctor.

    Goes by the name of the chip, so that ascend950 and the option it stands for are one. A chip with a sheet of the
    user's own, whose name no option of conf/hardware has, goes by its architecture.
    """
    names = chip_names()
    if chip_name in names.values():
        option = match_option(device, list(names))
        return option is not None and names[option] == chip_name
    if device.vendor == "nvidia":
        return f"sm{device.compute_capability.replace('.', '')}" == architecture
    return device.vendor == "huawei" and architecture.removeprefix("ascend") in device.name


@cache
def chip_names() -> dict[str, str]:
    """Option of conf/hardware → name of its chip."""
    return {option: sheet["name"] for option, sheet in chip_sheets().items()}


def _chip(hardware: Hardware, machine: MachineFacts) -> tuple[str, Chip | None]:
    if not isinstance(hardware, AutoHardware):
        return "", None
    options = [match_option(device, hardware_options()) for device in machine.devices]
    option = next((name for name in options if name), "cpu")
    chip = load_chip(option)
    assert isinstance(chip, CpuChip) or machine.devices, "an accelerator is taken only where there is one"
    return option, chip


def load_chip(option: str) -> Chip:
    """The chip facts of one file of conf/hardware. Raises Refused where the file is not right."""
    from deepinfer.config.compose import load  # imports Hydra, which most callers of this module do not need

    chip = load(f"hardware={option}").hardware
    assert isinstance(chip, Chip), f"hardware={option} holds no chip facts"
    return chip


def _checkpoints(model: Model) -> dict[str, CheckpointFacts]:
    names: tuple[str, ...] = SHIPPED if model.name == "auto" else (model.name,)
    with_tensors = model.weights == "checkpoint"
    found = {}
    if model.path is not None:
        found[FOLDER] = read_checkpoint(user_path(model.path, "model.path"), with_tensors=with_tensors)
        names = () if model.name == "auto" else names
        with_tensors = False  # the named model then serves only for a comparison of the two config.json
    for name in names:
        found[name] = read_checkpoint(shipped_folder(name), with_tensors=with_tensors)
    return found


def chip_sheets() -> dict[str, dict[str, Any]]:
    """Every file of conf/hardware as plain data, for readers that need no `Chip`; `auto` and `same` are left out.

    Does by itself, and much faster, what Hydra does with these files: an option may build on one other of the group.
    """
    sheets = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in _hardware_files()}
    for sheet in sheets.values():
        for base in sheet.pop("defaults", ()):
            if base != "_self_":
                sheet.update({key: value for key, value in sheets[base].items() if key not in sheet})
    return {option: sheets[option] for option in sorted(sheets) if sheets[option]["kind"] not in NO_CHIPS}


def _hardware_files() -> list[Path]:
    folder = Path(str(resources.files("deepinfer.conf") / "hardware"))
    return sorted(folder.glob("*.yaml"))
