"""Lines of shell scripts that several launchers share."""

import re
import shlex
from collections.abc import Mapping, Sequence

from deepinfer.config.errors import ExitCode
from deepinfer.plan.launch.job import Job
from deepinfer.plan.launch.worlds import World

STRICT = "set -euo pipefail"
_INERT = re.compile(r'["`\\]')  # characters that must mean themselves between double quotes


def torchrun(
    world: World, *, python: str, port: int, plan: str, node: int | str, ranks: int, address: str
) -> list[str]:
    """The words that start the `ranks` ranks of one node; `node` and `address` may name shell variables."""
    return [
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={world.num_nodes}",
        f"--node-rank={node}",
        f"--nproc-per-node={ranks}",
        f"--master-addr={address}",
        f"--master-port={port}",
        "--max-restarts=0",
        "-m",
        *rank_words(world, plan),
    ]


def rank_words(world: World, plan: str) -> list[str]:
    """What a rank is told, behind `python -m`: everything else is in the plan."""
    return ["deepinfer", "rank", f"plan={plan}", f"role={world.role}", f"replica={world.replica}"]


def command(words: Sequence[str], indent: str = "") -> str:
    """Words as a shell command, options on lines of their own. A word with a $ is expanded by the shell, any other is not."""
    lines: list[str] = []
    for word in words:
        inert = _INERT.sub(r"\\\g<0>", word)
        text = f'"{inert}"' if "$" in word else shlex.quote(word)
        if not lines or word.startswith(("--", "plan=")) or (word == "-m" and len(lines) > 1):
            lines.append(text)
        else:
            lines[-1] += f" {text}"
    return f" \\\n{indent}  ".join(lines)


def exports(env: Mapping[str, int | str]) -> list[str]:
    """The launcher's own variables."""
    return [f"export {name}={shlex.quote(str(value))}" for name, value in env.items()]


def script(job: Job, about: Sequence[str], body: Sequence[str]) -> str:
    """A bash script: what it is for, then what it does; empty lines of the body are left out."""
    head = ["#!/usr/bin/env bash", *(f"# {line}" for line in about)]
    return "\n".join([*head, STRICT, *refusal(job), *filter(None, body), ""])


def refusal(job: Job) -> list[str]:
    """Lines that end a script before it starts anything, where its ranks could not run."""
    return [f"echo {shlex.quote(job.not_runnable)} >&2", f"exit {int(ExitCode.OTHER)}"] if job.lacks else []


def marked(job: Job) -> list[str]:
    """The comment lines that a file begins with whose ranks could not run."""
    return [f"{job.not_runnable}.", "This file shows what will be started."] if job.lacks else []


def about(job: Job, world: World, what: str) -> list[str]:
    """The head comment of a world's file."""
    return [
        *marked(job),
        what,
        f"{world.name}: {world.size} rank{'s' * (world.size != 1)}; plan {job.plan.rank_digest}; "
        "written by `deepinfer launch`, see README.md",
    ]
