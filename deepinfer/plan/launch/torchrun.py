"""launcher=torchrun: one script for every node of every replica, to be started there by whatever starts things on a site."""

import shlex
from collections.abc import Iterator

from deepinfer.config.errors import ExitCode
from deepinfer.config.launchers import TorchrunLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.shell import about, command, exports, script, torchrun
from deepinfer.plan.launch.worlds import World

RESOLVES = """\
! command -v getent >/dev/null || getent ahosts "$master_addr" >/dev/null || {{
  echo "deepinfer: the address of node 0, $master_addr, means nothing on this machine: no such name is known here" >&2
  exit {code}
}}"""
ALONE = "127.0.0.1"  # a world of one node meets on it


def render(job: Job) -> Rendered:
    """Scripts `role-replica/node-N.sh`."""
    files, steps = {}, []
    for world in job.worlds:
        for node in range(world.num_nodes):
            name = script_name(world, node)
            files[name] = _script(job, world, node)
            host = _host(job, world, node)
            steps.append(f"{_address_to_set(job, world)}./{name}{f'   # on {host}' if host else ''}")
    return Rendered(files=files, steps=tuple(steps), notes=tuple(_notes(job)))


def _notes(job: Job) -> Iterator[str]:
    nodes = [world.num_nodes for world in job.worlds]
    if job.plan.serving:
        yield "SIGTERM to a script lets running requests finish; torchrun itself then ends with exit code 1, as it always does"
    if nodes == [1]:
        return
    meets = max(nodes) > 1 and not job.hosts
    where = "; MASTER_ADDR is the address of the machine that runs node 0 of the same replica" if meets else ""
    yield f"copy this folder to every node, or share it; each script runs on a node of its own{where}"


def script_name(world: World, node: int) -> str:
    return f"{world.name}/node-{node:0{len(str(world.num_nodes - 1))}}.sh"


def _script(job: Job, world: World, node: int) -> str:
    launcher = job.launcher
    assert isinstance(launcher, TorchrunLauncher), "chosen by its kind"
    words = torchrun(
        world,
        python=launcher.python,
        port=job.port(world),
        plan=f"$folder/{PLAN_FILE}",
        node=node,
        ranks=world.node_ranks[node],
        address="$master_addr",
    )
    return script(
        job,
        about(job, world, f"Node {node} of {world.num_nodes}."),
        [
            *exports(job.env(world)),  # before the script's own, which win
            'folder="$(cd "$(dirname "$0")/.." && pwd)"',
            f"master_addr={_address(job, world, node)}",
            launcher.setup or "",
            _checked(world),
            _told(job, world, node),
            f"exec {command(words)}",
        ],
    )


def _checked(world: World) -> str:
    """Lines that end the script where the address of node 0 means nothing there: torchrun would wait for it at length."""
    if world.num_nodes == 1:
        return ""
    return RESOLVES.format(code=int(ExitCode.NETWORK))


def _told(job: Job, world: World, node: int) -> str:
    """A line that says whom this node waits for and where, since torchrun does not, however long one of them stays away."""
    if world.num_nodes == 1:
        return ""
    interface = job.env(world).get("GLOO_SOCKET_IFNAME", "")
    via = f" by interface {interface}" if interface else ""
    text = f"deepinfer: node {node} of {world.num_nodes} of {world.name} meets the others at $master_addr:{job.port(world)}"
    return f'echo "{text}"{shlex.quote(f"{via}; torchrun waits 10 minutes for them")} >&2'


def _address(job: Job, world: World, node: int) -> str:
    if world.num_nodes == 1:
        return ALONE
    first = _host(job, world, 0)
    if first:
        return shlex.quote(first)
    what = "this machine" if node == 0 else f"the machine that runs {script_name(world, 0)}"
    return f'"${{MASTER_ADDR:?set it to the address of {what}}}"'


def _address_to_set(job: Job, world: World) -> str:
    return "" if job.hosts or world.num_nodes == 1 else "MASTER_ADDR=… "


def _host(job: Job, world: World, node: int) -> str:
    return job.hosts[world.first_node + node] if job.hosts else ""
