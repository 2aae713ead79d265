"""What can be planned but not yet run. A test freezes this list; it may only get shorter."""

from operator import attrgetter

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.specs import Spec

NOT_BUILT: dict[str, tuple[str | int, ...]] = {
    "task.kind": ("serve", "chat", "simulate", "run_batch"),
    "hardware.kind": ("cuda", "ascend"),
    "deploy.kind": ("disaggregated",),
    "executor.kind": ("distributed",),
    "kernels.kind": ("triton", "deepseek"),
}
MAX_RANKS = 1
INSTEAD = {  # what to type in place of an entry's value
    "task.kind": "deepinfer plan …",
    "hardware.kind": "hardware=cpu",
    "deploy.kind": "deploy=colocated",
    "executor.kind": "executor=local",
    "kernels.kind": "kernels=auto",
}


def unbuilt(spec: Spec) -> list[Problem]:
    """Everything in a Spec that has no code behind it yet, by name. `plan` answers for all of it; a run must refuse."""
    problems = []
    for path, values in NOT_BUILT.items():
        value = attrgetter(path)(spec)
        if value in values:
            problems.append(not_built(f"{path.removesuffix('.kind')}={value}", INSTEAD[path]))
    if spec.parallel.num_ranks > MAX_RANKS:
        problems.append(not_built(f"parallel: {spec.parallel.num_ranks} ranks", "parallel=single"))
    return problems


def launched(spec: Spec) -> list[Problem]:
    """The refusal of a run in this process whose ranks somebody else is to start; empty where it is to run here."""
    if spec.launcher.kind == "local":
        return []
    asked, found = f"launcher={spec.launcher.kind}", "this command runs in this process"
    fix = f"deepinfer launch {asked} out=DIR …"
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
