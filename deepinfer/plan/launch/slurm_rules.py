"""What sbatch would refuse, or take for something else: https://slurm.schedmd.com/sbatch.html."""

import re
from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.launchers import SlurmLauncher
from deepinfer.plan.launch.texts import is_line, shown

_NAME = re.compile(r"[A-Za-z0-9_.,:@+%/=()-]+")
_SHAPES = {  # key → what Slurm reads there, and how to say so
    "time": (
        re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}|UNLIMITED|INFINITE"),
        "a limit is MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS",
    ),
    "mem": (re.compile(r"\d+[KMGT]?"), "memory is a whole number with K, M, G or T, such as 480G"),
    "gres": (
        re.compile(r"[A-Za-z_][\w.-]*(:(?!\d+$)[\w.-]+)?"),
        "it is NAME or NAME:TYPE; how many of them is the plan's",
    ),
}
_OPTION = re.compile(r"--([A-Za-z][A-Za-z-]*)(=.+)?")
OF_THE_PLAN = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "tasks-per-node",
    "ntasks-per-gpu",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gpus-per-socket",
    "nodelist",
    "nodefile",
    "distribution",
    "array",
    "wrap",
)
MEMORY = ("mem-per-cpu", "mem-per-gpu")
KEYS = {  # options that keys of the launcher write
    "partition": "partition",
    "account": "account",
    "time": "time",
    "gres": "gres",
    "mem": "mem",
    "cpus-per-task": "cpus_per_task",
    "container-image": "image",
    "container-mounts": "container_mounts",
}


def slurm_problems(launcher: SlurmLauncher) -> Iterator[Problem]:
    """Every text of the launcher that makes no job, or another one than the plan's."""
    names = {name: getattr(launcher, name) for name in ("partition", "account", *_SHAPES)}
    names |= {f"role_partitions.{role}": name for role, name in launcher.role_partitions.items()}
    for key, text in names.items():
        if text is None or not is_line(text):
            continue
        shape, why = _SHAPES.get(key, (_NAME, "sbatch would read on, or stop, there"))
        if not _NAME.fullmatch(text):
            found = "a character that no name in Slurm has"
            yield Problem(asked=f"launcher.{key}={shown(text)}", found=found, why=why)
        elif not shape.fullmatch(text):
            yield Problem(asked=f"launcher.{key}={text}", found="sbatch would refuse it", why=why)
    for option in filter(is_line, launcher.options):
        yield from _option_problems(option, launcher)


def _option_problems(option: str, launcher: SlurmLauncher) -> Iterator[Problem]:
    asked = f"launcher.options=[{shown(option)}]"
    match = _OPTION.fullmatch(option)
    if not match:
        why = "an item is --name or --name=value, and its value is quoted for you"
        yield Problem(asked=asked, found="not one option of sbatch", why=why, fix=_one_option(option))
        return
    name, value = match[1], (match[2] or "=…")[1:]
    begun = (full for full in OF_THE_PLAN if full.startswith(name))  # sbatch takes the beginning of a name, too
    meant = name if name in KEYS else next(begun, "")
    if meant in KEYS:
        fix = f"launcher.{KEYS[meant]}={value}" if re.fullmatch(r"[\w.:-]+|…", value) else ""
        yield Problem(asked=asked, found=f"launcher.{KEYS[meant]} writes this option", why="it has one value", fix=fix)
    elif name in MEMORY and launcher.mem:
        found = f"launcher.mem={launcher.mem} writes --mem"
        yield Problem(asked=asked, found=found, why="sbatch takes one of the two", fix="launcher.mem=null")
    elif meant:
        found, why = f"the plan says what --{meant} is", "another value would start other ranks than the plan's"
        yield Problem(asked=asked, found=found, why=why)


def _one_option(option: str) -> str:
    """`--name value` as `--name=value`; empty where that is not what was meant."""
    name, _, value = option.strip().partition(" ")
    joined = f"{name}={value.strip()}"
    return f"'launcher.options=[\"{joined}\"]'" if re.fullmatch(r"--[a-z-]+=[A-Za-z0-9_.,:-]+", joined) else ""
