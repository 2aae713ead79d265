"""The files really run, with programs in place of Slurm, Ray and Python that write down what they are asked for."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

Launch = Callable[..., tuple[Plan, Rendered]]
TWO_NODES = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
PYTHON = """#!/bin/sh
who="RANK=$RANK WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK A=$A $MASTER_ADDR"
printf '%s\\n' "$who" "$@" END >> "$LOG"
exit "${CODE:-0}"
"""
SRUN = """#!/bin/bash
# as srun: options, then a command for every task
while [ "${1#--}" != "$1" ]; do echo "srun $1" >> "$LOG"; shift; done
for task in 0 9; do SLURM_PROCID=$task SLURM_NTASKS=16 SLURM_LOCALID=$((task % 8)) "$@" || exit $?; done
"""
RAY = '''
"""As much of Ray as the driver uses; tasks run when they are asked for."""
import os
from ray import util

def init(address): print("init", address)
def get(value): return value
def wait(values, num_returns=1, timeout=None): return values[:num_returns], values[num_returns:]
def cluster_resources(): return {}
def cancel(task): print("cancelled")

class ObjectRef: pass

class remote:
    def __init__(self, function, **options): self.function, self.options_ = function, options
    def options(self, **options): return remote(self.function, **options)
    def remote(self, *arguments):
        if self.function.__name__ == "run_node":
            strategy = self.options_.pop("scheduling_strategy")
            print("task", strategy.index, sorted(self.options_.items()))
        return self.function(*arguments)
'''


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the stand-ins."""
    folder = tmp_path / "bin dir"
    folder.mkdir()
    texts = {"python": PYTHON, "srun": SRUN, "scontrol": "#!/bin/sh\necho first\necho second\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def execute(tmp_path: Path, programs: Path) -> Callable[..., tuple[int, list[str], str]]:
    """Write a launch, run one of its files; exit code, what the stand-ins wrote down, and stderr."""

    def run(rendered: Rendered, *command: str, **variables: str) -> tuple[int, list[str], str]:
        folder = tmp_path / "a launch"
        for name, text in rendered.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        log = tmp_path / "log"
        env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "LOG": str(log)} | variables
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, log.read_text().splitlines() if log.exists() else [], done.stderr + done.stdout

    return run


def test_torchrun(launch_of: Launch, execute: Any, tmp_path: Path) -> None:
    _, rendered = launch_of(*TWO_NODES, "launcher=torchrun", "launcher.env.A=it's $5", "launcher.setup=export CODE=3")
    code, told, _ = execute(rendered, "bash", "all-0/node-1.sh", MASTER_ADDR="127.0.0.1")
    assert code == 3  # of what it runs; and the setup was run
    assert told == [
        "RANK= WORLD_SIZE= LOCAL_RANK= A=it's $5 127.0.0.1",
        *("-m torch.distributed.run --nnodes=2 --node-rank=1 --nproc-per-node=8 --master-addr=127.0.0.1").split(),
        *("--master-port=29500 --max-restarts=0 -m deepinfer rank").split(),
        f"plan={tmp_path}/a launch/all-0/../plan.json".replace("/all-0/..", ""),
        "role=all",
        "replica=0",
        "END",
    ]


def test_torchrun_where_the_address_of_node_0_means_nothing(launch_of: Launch, execute: Any) -> None:
    _, rendered = launch_of(*TWO_NODES, "launcher=torchrun")
    code, told, said = execute(rendered, "bash", "all-0/node-1.sh", MASTER_ADDR="nobody.invalid")
    assert code == 7 and told == []
    assert "the address of node 0, nobody.invalid, means nothing on this machine" in said


def test_local(launch_of: Launch, execute: Any, tmp_path: Path) -> None:
    _, rendered = launch_of("model=v41_tiny", "launcher=local", "launcher.python=python", "launcher.env.A=1")
    code, told, _ = execute(rendered, "bash", "run.sh")
    plan = f"plan={tmp_path}/a launch/plan.json"
    assert (code, told) == (
        0,
        ["RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 A=1 ", "-m", "deepinfer", "rank", plan, "role=all", "replica=0", "END"],
    )


def test_local_runs_every_world_and_tells_of_the_worst(launch_of: Launch, execute: Any) -> None:
    split = ("deploy=disaggregated", "parallel@deploy.prefill.parallel=single", "parallel@deploy.decode.parallel=ep2")
    _, rendered = launch_of("model=v41_tiny", *split, "launcher=local", "launcher.python=python")
    code, told, _ = execute(rendered, "bash", "run.sh", CODE="4")
    assert code == 4
    assert {word for word in told if word.startswith("role=")} == {"role=prefill", "role=decode"}
    assert {line for line in told if line.startswith("RANK=")} == {
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 A= 127.0.0.1",
        "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 A= 127.0.0.1",
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 A= 127.0.0.1",
    }


STAND_IN = """#!/bin/bash
# a rank: rank 2 does what it is told, the others wait to be ended
trap 'echo "told $RANK" >> "$LOG"; exit 0' TERM
echo "$MASTER_PORT $RANK" >> "$LOG"
until [ "$(grep -c . "$LOG")" -ge 4 ]; do sleep 0.05; done
if [ "$RANK" = 2 ]; then eval "$LAST"; fi
[ -n "$ALL" ] && exit 0
for _ in {1..600}; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("last", "code", "says"),
    [("exit 7", 7, ""), ("kill -9 $$", 137, "rank 2 of all-0 was ended by signal 9"), ("ALL=1", 0, "")],
)
def test_local_ends_a_world_with_its_first_bad_rank(
    launch_of: Launch, execute: Any, programs: Path, last: str, code: int, says: str
) -> None:
    """Its code is the script's. The others, which say nothing of their own here, are told to end."""
    (programs / "python").write_text(STAND_IN)
    _, rendered = launch_of("model=v41_tiny", "parallel=ep4", "launcher=local", "launcher.python=python")
    script = rendered.files["run.sh"].replace("tenths < 50", "tenths < 20")
    rendered = structs.replace(rendered, files=rendered.files | {"run.sh": script})
    ended, told, err = execute(rendered, "bash", "run.sh", LAST=last, ALL="1" if last == "ALL=1" else "")
    assert ended == code and says in err and "Killed" not in err
    assert sorted(told)[:4] == [f"29500 {rank}" for rank in range(4)]
    assert sorted(told)[4:] == ([] if code == 0 else ["told 0", "told 1", "told 3"])


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("task", ["generate", "serve"])
def test_a_signal_to_the_local_script_ends_its_ranks(
    launch_of: Launch, programs: Path, tmp_path: Path, sent: signal.Signals, code: int, task: str
) -> None:
    """Ranks that serve and drain have done what they were to do: 0."""
    (programs / "python").write_text(STAND_IN)
    _, rendered = launch_of("model=v41_tiny", "parallel=ep4", "launcher=local", "launcher.python=python", task=task)
    code = 0 if task == "serve" else code
    (tmp_path / "run.sh").write_text(rendered.files["run.sh"])
    log = tmp_path / "log"
    env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "LOG": str(log), "LAST": "", "ALL": ""}
    script = subprocess.Popen(["bash", tmp_path / "run.sh"], env=env, start_new_session=True)
    try:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s and not (log.exists() and len(log.read_text().splitlines()) == 4):
            time.sleep(0.05)
        os.killpg(script.pid, sent) if sent == signal.SIGINT else script.send_signal(sent)
        assert script.wait(120) == code
        assert sorted(log.read_text().splitlines())[4:] == [f"told {rank}" for rank in range(4)]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)


def test_slurm(launch_of: Launch, execute: Any, tmp_path: Path) -> None:
    _, rendered = launch_of(*TWO_NODES, "launcher=slurm", "launcher.env.A=x y")
    job = {"SLURM_SUBMIT_DIR": str(tmp_path / "a launch"), "SLURM_JOB_NODELIST": "n[0-1]"}
    code, told, _ = execute(rendered, "bash", "all-0.sbatch", **job)
    assert code == 0
    assert told[:3] == ["srun --kill-on-bad-exit=1", "srun --distribution=plane=8", "srun --cpu-bind=none"]
    rank = ["-m", "deepinfer", "rank", f"plan={tmp_path}/a launch/plan.json", "role=all", "replica=0", "END"]
    assert told[3:] == [
        "RANK=0 WORLD_SIZE=16 LOCAL_RANK=0 A=x y first",
        *rank,
        "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 A=x y first",
        *rank,
    ]
    assert execute(rendered, "bash", "all-0.sbatch", **job, CODE="5")[0] == 5


def test_slurm_from_another_folder(launch_of: Launch, execute: Any, tmp_path: Path) -> None:
    _, rendered = launch_of("launcher=slurm")
    code, told, err = execute(rendered, "bash", "all-0.sbatch", SLURM_SUBMIT_DIR=str(tmp_path))
    assert (code, told) == (2, []) and "call sbatch in the folder of this file" in err


def test_the_command_of_a_pod(launch_of: Launch, execute: Any) -> None:
    _, rendered = launch_of(*TWO_NODES, "launcher=kubernetes", "launcher.image=x")
    template = yaml.safe_load(rendered.files["all.yaml"])["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    command = template["spec"]["containers"][0]["command"]
    pod = {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "x-0.x.llm", "REPLICA": "3"}
    code, told, _ = execute(rendered, *command, **pod)
    assert code == 0
    assert {"--node-rank=1", "--master-addr=x-0.x.llm", "replica=3", "plan=/etc/deepinfer/plan.json"} <= set(told)
    code, _, err = execute(rendered, *command)
    assert code != 0 and "needs LeaderWorkerSet 0.6 or newer" in err


@pytest.mark.parametrize("code", [0, 7])
def test_ray(launch_of: Launch, execute: Any, tmp_path: Path, code: int) -> None:
    plan, rendered = launch_of(*TWO_NODES, "launcher=ray", "launcher.env.A=1")
    package = tmp_path / "stand_in" / "ray"
    (package / "util").mkdir(parents=True)
    group = "class PlacementGroup:\n    def ready(self): return 1\n\ndef placement_group(bundles, strategy):\n"
    group += "    print(strategy, bundles)\n    return PlacementGroup()\n"
    strategy = "class PlacementGroupSchedulingStrategy:\n    def __init__(self, group, placement_group_bundle_index):\n"
    strategy += "        self.index = placement_group_bundle_index\n"
    (package / "__init__.py").write_text(RAY)
    (package / "util" / "__init__.py").write_text("def get_node_ip_address(): return '10.0.0.7'\n")
    (package / "util" / "placement_group.py").write_text(group)
    (package / "util" / "scheduling_strategies.py").write_text(strategy)
    ended, told, out = execute(rendered, sys.executable, "start.py", PYTHONPATH=str(package.parent), CODE=str(code))
    assert ended == code and ("cancelled" in out) == bool(code), out
    bundle = "{'CPU': 8, 'GPU': 8}"
    assert f"STRICT_SPREAD [{bundle}, {bundle}]" in out and plan.rank_digest in out
    assert "task 1 [('max_retries', 0), ('num_cpus', 8), ('num_gpus', 8), ('resources', {})]" in out
    nodes = [word for word in told if word.startswith(("--node-rank", "--master-addr"))]
    assert nodes == ["--node-rank=0", "--master-addr=10.0.0.7", "--node-rank=1", "--master-addr=10.0.0.7"]
    assert told.count("role=all") == 2 and told[0].endswith("A=1 ")
