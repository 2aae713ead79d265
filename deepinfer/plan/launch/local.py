"""launcher=local: one script that starts every rank as a process of this machine."""

import sys

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.launchers import LocalLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.shell import command, exports, marked, rank_words, script, torchrun
from deepinfer.plan.launch.worlds import World

FILE = "run.sh"
HERE = "127.0.0.1"
PLAN = f"$folder/{PLAN_FILE}"


def render(job: Job) -> Rendered:
    """`run.sh`. Raises Refused for a plan whose devices are spread over several machines."""
    launcher = job.launcher
    assert isinstance(launcher, LocalLauncher), "chosen by its kind"
    nodes = job.plan.layout.num_nodes
    if nodes > 1 and not all(job.chip(world).kind == "virtual" for world in job.worlds):
        found = f"the plan's {job.plan.layout.num_ranks} ranks stand on {nodes} nodes"
        why, fix = "local starts processes of one machine", "launcher=torchrun"
        raise Refused([Problem(asked="launcher=local", found=found, why=why, fix=fix, code=ExitCode.PLAN)])
    commands = [
        _command(job, world, node, launcher.python or sys.executable)
        for world in job.worlds
        for node in range(world.num_nodes)
    ]
    about = [
        *marked(job),
        f"All {job.plan.layout.num_ranks} ranks of plan {job.plan.rank_digest} on this machine.",
        "Written by `deepinfer launch`, see README.md",
    ]
    body = [*exports(job.env(*job.worlds)), 'folder="$(cd "$(dirname "$0")" && pwd)"', *_started(commands)]
    return Rendered(files={FILE: script(job, about, body)}, steps=(f"./{FILE}",))


def _command(job: Job, world: World, node: int, python: str) -> str:
    """One node's ranks; a single rank needs nobody to start it, and its exit code then comes through."""
    if world.size == 1:
        variables = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
        return f"env {variables} {command([python, '-m', *rank_words(world, PLAN)])}"
    words = torchrun(
        world,
        python=python,
        port=job.port(world),
        plan=PLAN,
        node=node,
        ranks=world.node_ranks[node],
        address=HERE,
    )
    return command(words)


def _started(commands: list[str]) -> list[str]:
    """One command takes the place of the script; several run beside each other, and the first bad exit code is the script's."""
    if len(commands) == 1:
        return [f"exec {commands[0]}"]
    return [
        "started=()",
        *(f'{line} &\nstarted+=("$!")' for line in commands),
        "trap 'kill \"${started[@]}\" 2>/dev/null || true' EXIT",
        "code=0",
        'for process in "${started[@]}"; do',
        '  wait "$process" || code="$?"',
        "done",
        'exit "$code"',
    ]
