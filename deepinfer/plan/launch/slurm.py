"""launcher=slurm: one sbatch file for every replica of a role, and a script that submits them all.

Replicas are jobs of their own, so that one that fails, or waits for its nodes, stops no other. Options as documented in
https://slurm.schedmd.com/sbatch.html.
"""

import shlex

from deepinfer.config.launchers import SlurmLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.shell import STRICT, about, command, exports, rank_words, script
from deepinfer.plan.launch.worlds import World

SUBMIT = "submit.sh"
GRES = {"ascend": "npu"}  # sites name the generic resource; with cuda, Slurm has an option of its own


def render(job: Job) -> Rendered:
    """Files `role-replica.sbatch` and `submit.sh`."""
    files = {file_name(world): _sbatch(job, world) for world in job.worlds}
    lines = ['cd "$(dirname "$0")"', *(f"sbatch {file_name(world)}" for world in job.worlds)]
    files[SUBMIT] = script(["Submits one job for each replica."], lines)
    notes = ["this folder must be on a file system that all nodes share, and sbatch must be called in it"]
    for world in job.worlds:
        if world.replica == 0 and job.spans_domain(world):
            segment, link = f"#SBATCH --segment={world.num_nodes}", job.chip(world).domain
            notes.append(f"where Slurm knows blocks, {segment} keeps a replica of {world.role} in one {link} domain")
    return Rendered(files=files, steps=(f"./{SUBMIT}",), notes=tuple(notes))


def file_name(world: World) -> str:
    return f"{world.name}.sbatch"


def _sbatch(job: Job, world: World) -> str:
    launcher = job.launcher
    assert isinstance(launcher, SlurmLauncher), "chosen by its kind"
    per_node = world.node_ranks[0]  # a replica fills its nodes one after the other
    start = command(["srun", "--kill-on-bad-exit=1", f"--distribution=plane={per_node}", "bash", "-c"])
    rank = command([launcher.python, "-m", *rank_words(world, "$plan")], indent="  ")
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in about(job, world, f"{world.num_nodes} node{'s' * (world.num_nodes > 1)}.")),
        *(f"#SBATCH {option}" for option in _options(job, world, launcher, per_node)),
        STRICT,
        f'plan="${{SLURM_SUBMIT_DIR:?type sbatch {file_name(world)}}}/{PLAN_FILE}"',
        '[ -f "$plan" ] || { echo "$plan is not there: call sbatch in the folder of this file" >&2; exit 2; }',
        'hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"',  # no pipe to head: it would end scontrol early
        f"export MASTER_ADDR=\"${{hosts%%$'\\n'*}}\" MASTER_PORT={job.port(world)}",
        *exports(job.env),
        *([launcher.setup] if launcher.setup else []),
        f"{start} '",
        '    export RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_NTASKS" LOCAL_RANK="$SLURM_LOCALID"',
        f'    exec "$@"\' rank {rank}',
        "",
    ]
    return "\n".join(lines)


def _options(job: Job, world: World, launcher: SlurmLauncher, per_node: int) -> list[str]:
    kind = job.chip(world).kind
    gres = launcher.gres or GRES.get(kind)
    partition = launcher.role_partitions.get(world.role, launcher.partition)
    named = {"partition": partition, "account": launcher.account, "time": launcher.time}
    return [
        f"--job-name=deepinfer-{world.name}",
        f"--nodes={world.num_nodes}",
        f"--ntasks={world.size}",
        f"--ntasks-per-node={per_node}",
        *([f"--gres={gres}:{per_node}"] if gres else [f"--gpus-per-node={per_node}"] if kind == "cuda" else []),
        *(f"--{name}={shlex.quote(value)}" for name, value in named.items() if value),
        "--output=%x-%j.out",
        *launcher.options,
    ]
