"""launcher=local: one script that starts every rank as a process of this machine.

A world is a function of the shell and not torchrun, so that the exit code of a rank is the script's, and nothing but a rank's
own sentence is said of what went wrong.
"""

import shlex
import sys

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.launchers import LocalLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.requests import grace_s
from deepinfer.plan.launch.shell import command, exports, marked, rank_words, script
from deepinfer.plan.launch.worlds import World

FILE = "run.sh"
HERE = "127.0.0.1"
PLAN = f"$folder/{PLAN_FILE}"
INTERFACE = """\
# Ranks of one machine need no network: gloo would listen where others can reach it.
[ ! -e /sys/class/net/lo ] || export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-lo}\""""
GRACE_S = 5  # that ranks have to say what they know of one that failed, and again to end when told to
WORLD = """\
running() {{ # whether a rank of this world runs
  local rank
  for rank in "${{ranks[@]}}"; do kill -0 "$rank" 2>/dev/null && return 0; done
  return 1
}}
until_gone() {{ # within {grace_s} s
  local tenths
  for ((tenths = 0; tenths < {grace_s}0; tenths++)); do running || return 0; sleep 0.1; done
  return 1
}}
end() {{ # CODE: tell all ranks to end, kill those that do not, and leave
  trap '' INT TERM HUP
  {{ # bash would name each process that is killed
    kill "${{ranks[@]}}" || true
    until_gone || {{ kill -KILL "${{ranks[@]}}"; until_gone; }} || true
  }} 2>/dev/null
  exit "$1"
}}
{drain}world() {{ # ROLE REPLICA PORT RANKS RANKS_A_NODE: all ranks of a world; the first that ends badly ends it with its code
  ranks=()
  trap '{end} 130' INT
  trap '{end} 143' TERM
  trap '{end} 129' HUP
  local rank
  for ((rank = 0; rank < $4; rank++)); do
    RANK="$rank" WORLD_SIZE="$4" LOCAL_RANK="$((rank % $5))" LOCAL_WORLD_SIZE="$5" \\
      MASTER_ADDR={here} MASTER_PORT="$3" {start} &
    ranks+=("$!")
  done
  for rank in "${{ranks[@]}}"; do
    wait -n 2>/dev/null && continue
    code="$?"
    for rank in "${{!ranks[@]}}"; do
      [ "$code" -le 128 ] || kill -0 "${{ranks[rank]}}" 2>/dev/null ||
        echo "deepinfer: rank $rank of $1-$2 was ended by signal $((code - 128)); the others end, too" >&2
    done
    until_gone || true
    end "$code"
  done
}}"""

DRAIN = """\
drain() {{ # CODE: rank 0 finishes what it answers, for which all have {drain_s} s; another signal ends them at once with CODE
  status="$1"
  trap 'end "$status"' INT TERM HUP
  local tenths rank
  code=0
  {{
    kill "${{ranks[@]}}" || true
    for ((tenths = 0; tenths < {drain_s}0; tenths++)); do running || break; sleep 0.1; done
    ! running || end "$status"
    for rank in "${{ranks[@]}}"; do wait "$rank" || code="$?"; done
  }} 2>/dev/null
  exit "$code"
}}
"""
SEVERAL = """\
trap 'kill "${started[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
code=0
for process in "${started[@]}"; do
  wait "$process" || code="$?"
done
exit "$code\""""
SEVERAL_THAT_SERVE = """\
trap 'kill "${started[@]}" 2>/dev/null || true' INT TERM HUP
code=0
for process in "${started[@]}"; do
  while :; do # a signal interrupts the wait
    status=0
    wait "$process" || status="$?"
    kill -0 "$process" 2>/dev/null || break
  done
  [ "$status" = 0 ] || code="$status"
done
exit "$code\""""


def render(job: Job) -> Rendered:
    """`run.sh`. Raises Refused for a plan whose devices are spread over several machines."""
    launcher = job.launcher
    assert isinstance(launcher, LocalLauncher), "chosen by its kind"
    nodes = job.plan.layout.num_nodes
    if nodes > 1 and not all(job.chip(world).kind == "virtual" for world in job.worlds):
        found = f"the plan's {job.plan.layout.num_ranks} ranks stand on {nodes} nodes"
        why, fix = "local starts processes of one machine", "launcher=torchrun"
        raise Refused([Problem(asked="launcher=local", found=found, why=why, fix=fix, code=ExitCode.PLAN)])
    about = [
        *marked(job),
        f"All {job.plan.layout.num_ranks} ranks of plan {job.plan.rank_digest} on this machine.",
        "Written by `deepinfer launch`, see README.md",
    ]
    body = [*exports(job.env(*job.worlds)), 'folder="$(cd "$(dirname "$0")" && pwd)"']
    body += _started(job, launcher.python or sys.executable)
    return Rendered(files={FILE: script(job, about, body)}, steps=(f"./{FILE}",))


def _started(job: Job, python: str) -> list[str]:
    """A rank alone takes the place of the script; worlds run beside each other, and a bad exit code is the script's."""
    first, *others = job.worlds
    if first.size == 1 and not others:
        variables = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"
        return [f"exec env {variables} {command([python, '-m', *rank_words(first, PLAN)])}"]
    start = f'{command([python])} -m deepinfer rank "plan={PLAN}" "role=$1" "replica=$2"'
    drain_s = grace_s(job.plan)  # 0: nobody is answered
    end, drain = ("drain", DRAIN.format(drain_s=drain_s)) if drain_s else ("end", "")
    lines = [INTERFACE, WORLD.format(start=start, here=HERE, grace_s=GRACE_S, end=end, drain=drain)]
    if not others:
        return [*lines, _call(job, first)]
    return [
        *lines,
        "started=()",
        *(f'{_call(job, world)} &\nstarted+=("$!")' for world in job.worlds),
        SEVERAL_THAT_SERVE if drain_s else SEVERAL,
    ]


def _call(job: Job, world: World) -> str:
    return shlex.join(
        ["world", world.role, *map(str, (world.replica, job.port(world), world.size, world.node_ranks[0]))]
    )
