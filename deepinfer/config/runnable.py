"""What can be planned but not yet run. A test freezes this list; it may only get shorter."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.quoting import launch_line
from deepinfer.config.specs import Spec

ARCHITECTURE = "hardware.architecture"
NOT_BUILT: dict[str, tuple[str | int, ...]] = {
    "task.kind": ("simulate",),
    "hardware.kind": ("ascend",),
    ARCHITECTURE: ("sm100", "sm103"),
    "deploy.kind": ("disaggregated",),
    "kernels.kind": ("deepseek",),
}
# Kinds of hardware of which a run takes one rank, however many are planned: there is no engine for NPUs, and what ranks say to
# each other has no simulation, which is all that runs for a virtual chip.
ONE_RANK_ON = ("ascend", "virtual")
SEVERAL_ON = "this version runs several ranks on CPUs and NVIDIA GPUs only"
INSTEAD = {  # what to type in place of an entry's value
    "task.kind": "deepinfer plan …",
    "hardware.kind": "hardware=cpu",
    ARCHITECTURE: "hardware=h200",
    "deploy.kind": "deploy=colocated",
    "kernels.kind": "kernels=auto",
}


def unbuilt(spec: Spec) -> list[Problem]:
    """Everything in a Spec that has no code behind it yet, by name. `plan` answers for all of it; a run must refuse."""
    problems = []
    for path, values in NOT_BUILT.items():
        value = _value(spec, path)
        if value in values:
            asked = f"hardware: {value}" if path == ARCHITECTURE else f"{path.removesuffix('.kind')}={value}"
            problems.append(not_built(asked, INSTEAD[path]))
    return problems


def many_ranks(num_ranks: int, kinds: Iterable[str], fix: str) -> list[Problem]:
    """The refusal of a run of several ranks on these kinds of hardware; empty where this version has code for it."""
    if num_ranks == 1 or not set(ONE_RANK_ON).intersection(kinds):
        return []
    asked, why = f"parallel: {num_ranks} ranks", "on other hardware they can be planned"
    return [Problem(asked=asked, found=SEVERAL_ON, why=why, fix=fix, code=ExitCode.OTHER)]


def plan_only(kind: str, architecture: str) -> str:
    """Why no run takes such a chip, as a key of NOT_BUILT; empty where this version has code for it."""
    if kind in NOT_BUILT["hardware.kind"]:
        return "hardware.kind"
    return ARCHITECTURE if architecture in NOT_BUILT[ARCHITECTURE] else ""


def _value(spec: Spec, path: str) -> object:
    if path != ARCHITECTURE:
        return attrgetter(path)(spec)
    return spec.hardware.architecture.value if isinstance(spec.hardware, Chip) else ""


def launched(spec: Spec, overrides: Sequence[str] = ()) -> list[Problem]:
    """The refusal of a run in this process whose ranks somebody else is to start; empty where it is to run here.
    `overrides` as typed."""
    if spec.launcher.kind == "local":
        return []
    asked, found = f"launcher={spec.launcher.kind}", "this command runs in this process"
    fix = launch_line(overrides, *([] if asked in overrides else [asked]))
    return [Problem(asked=asked, found=found, why="the files of launch start the ranks of a plan elsewhere", fix=fix)]


def not_built(asked: str, fix: str) -> Problem:
    """The refusal of something that can only be planned."""
    return Problem(
        asked=asked,
        found="this version has no code to run it",
        why="it can be planned",
        fix=fix,
        code=ExitCode.OTHER,
    )
