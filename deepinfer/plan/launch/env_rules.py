"""Variables that a launch may not give its ranks: no names, secrets, and what its files or their readers set themselves."""

import re
from collections.abc import Iterator
from itertools import pairwise

from deepinfer.config.errors import Problem
from deepinfer.config.launchers import Launcher
from deepinfer.plan.types import Plan

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r".*(TOKEN|SECRET|PASSWORD|PASSWD|APIKEY|CREDENTIALS?)")  # a part of a name, between underscores
_KEYS = {"API", "ACCESS", "PRIVATE", "SECRET", "SIGNING", "ENCRYPTION"}  # that a part KEY behind them is
_PLACES = {"FILE", "PATH", "DIR", "FOLDER"}  # a name that ends so is of a file, which is no secret
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TORCHRUN = ("PET_", "TORCHELASTIC_", "TORCH_ELASTIC_")  # its options as variables, and what it tells its ranks
# https://www.gnu.org/software/bash/manual/html_node/Bash-Variables.html
BASH = ("UID", "EUID", "PPID", "SHELLOPTS", "GROUPS", "IFS", "ENV", "POSIXLY_CORRECT")
SCRIPTS = {  # launcher → what its files call so: names, and beginnings of names
    "local": (
        (*BASH, "folder", "started", "process", "code", "ranks", "rank", "tenths", "status"),
        ("BASH", *TORCHRUN),
    ),
    "torchrun": ((*BASH, "folder", "master_addr"), ("BASH", *TORCHRUN)),
    "slurm": ((*BASH, "plan", "hosts"), ("BASH", "SLURM_", "SBATCH_", "SRUN_")),
    "ray": ((), TORCHRUN),
    "kubernetes": (("REPLICA",), ("LWS_", *TORCHRUN)),
}


def env_problems(plan: Plan, launcher: Launcher) -> Iterator[Problem]:
    """One problem at most for each variable of `launcher.env`."""
    for name in launcher.env:
        asked = f"launcher.env.{name}"
        if not _VARIABLE.fullmatch(name):
            yield Problem(asked=asked, found="no name of a variable", why="shells could not set it")
        elif is_secret(name):
            why = "the files of a launch are read by many"
            fix = "launcher.env_secret=NAME" if launcher.kind == "kubernetes" else f"export {name}=… on the nodes"
            yield Problem(asked=asked, found="a secret, by its name", why=why, fix=fix)
        elif _is_reserved(name, launcher.kind):
            found = "the files of the launch, and what they start, use this name themselves"
            yield Problem(asked=asked, found=found, why="another value would start other ranks than the plan's")
        elif name == "HF_HOME" and launcher.kind == "kubernetes" and plan.model.source == "hub":
            found, why = "every pod has it already", "it is where the volume of the model is mounted"
            yield Problem(asked=asked, found=found, why=why, fix="launcher.model_host_path=/FOLDER")


def is_secret(name: str) -> bool:
    """Whether a part of a name says so: HF_TOKEN, API_KEY and PGPASSWORD, but not TOKENIZERS_PARALLELISM."""
    parts = name.upper().split("_")
    keys = any(before in _KEYS and part == "KEY" for before, part in pairwise(parts))
    return parts[-1] not in _PLACES and (keys or any(_SECRET.fullmatch(part) for part in parts))


def _is_reserved(name: str, kind: str) -> bool:
    names, beginnings = SCRIPTS.get(kind, ((), ()))
    return name in (*RANKS, *names) or name.startswith(beginnings)
