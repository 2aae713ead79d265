"""launcher=slurm: one sbatch file for every replica of a role, and a script that submits them all.

Replicas are jobs of their own, so that one that fails, or waits for its nodes, stops no other. Options as documented in
https://slurm.schedmd.com/sbatch.html.
"""

import shlex

from deepinfer.config.launchers import SlurmLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.requests import grace_s
from deepinfer.plan.launch.shell import STRICT, about, command, exports, marked, rank_words, refusal, script
from deepinfer.plan.launch.worlds import World

SUBMIT = "submit.sh"
GRES = {"ascend": "npu"}  # sites name the generic resource; with cuda, Slurm has an option of its own


def render(job: Job) -> Rendered:
    """Files `role-replica.sbatch` and `submit.sh`."""
    launcher = job.launcher
    assert isinstance(launcher, SlurmLauncher), "chosen by its kind"
    files = {file_name(world): _sbatch(job, world) for world in job.worlds}
    lines = ['cd "$(dirname "$0")"', *(f"sbatch {file_name(world)}" for world in job.worlds)]
    files[SUBMIT] = script(job, [*marked(job), "Submits one job for each replica."], lines)
    notes = ["this folder must be on a file system that all nodes share, and sbatch must be called in it"]
    notes += _notes(launcher)
    if job.plan.serving:
        notes.append(
            "scancel --signal=TERM JOB lets running requests finish; scancel alone kills the ranks KillWait after that signal, "
            "30 s unless the site says otherwise"
        )
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
    step = [
        "--kill-on-bad-exit=1",
        f"--distribution=plane={per_node}",
        *_cores(launcher),
        *_container(job, world, launcher),
    ]
    start = command(["srun", *step, "bash", "-c"])
    rank = command([launcher.python, "-m", *rank_words(world, "$plan")], indent="  ")
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in about(job, world, f"{world.num_nodes} node{'s' * (world.num_nodes > 1)}.")),
        *(f"#SBATCH {option}" for option in _options(job, world, launcher, per_node)),
        STRICT,
        *refusal(job),
        *exports(job.env(world)),  # before the script's own, which win
        f'plan="${{SLURM_SUBMIT_DIR:?type sbatch {file_name(world)}}}/{PLAN_FILE}"',
        '[ -f "$plan" ] || { echo "$plan is not there: call sbatch in the folder of this file" >&2; exit 2; }',
        'hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"',  # no pipe to head: it would end scontrol early
        f"export MASTER_ADDR=\"${{hosts%%$'\\n'*}}\" MASTER_PORT={job.port(world)}",
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
    hosts = ",".join(job.hosts[world.first_node :][: world.num_nodes])
    named = {"partition": partition, "account": launcher.account, "time": launcher.time, "mem": launcher.mem}
    named |= {"nodelist": hosts}
    cores = launcher.cpus_per_task
    return [
        f"--job-name=deepinfer-{world.name}",
        f"--nodes={world.num_nodes}",
        f"--ntasks={world.size}",
        f"--ntasks-per-node={per_node}",
        *([f"--gres={gres}:{per_node}"] if gres else [f"--gpus-per-node={per_node}"] if kind == "cuda" else []),
        *(f"--{name}={shlex.quote(value)}" for name, value in named.items() if value),
        *(["--exclusive"] if launcher.exclusive else []),
        *([f"--cpus-per-task={cores}"] if cores else []),
        "--output=%x-%j.out",
        *([f"--signal=TERM@{grace_s(job.plan)}"] if job.plan.serving else []),  # to the ranks, before the time is up
        *(_quoted(option) for option in launcher.options),
    ]


def _cores(launcher: SlurmLauncher) -> list[str]:
    """Options of srun: it takes the cores of a task from nobody, and would bind each rank of a job's own node to one."""
    if launcher.cpus_per_task:
        return [f"--cpus-per-task={launcher.cpus_per_task}"]
    return ["--cpu-bind=none"] if launcher.exclusive else []


def _container(job: Job, world: World, launcher: SlurmLauncher) -> list[str]:
    """Options of pyxis (https://github.com/NVIDIA/pyxis): the image, and this folder at its own place inside."""
    image = launcher.role_images.get(world.role, launcher.image)
    if not image:
        return []
    model = [f"{job.plan.model.location}:{job.plan.model.location}"] if job.plan.model.source == "folder" else []
    mounts = ["$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR", *model, *launcher.container_mounts]
    return [f"--container-image={image}", f"--container-mounts={','.join(mounts)}"]


def _notes(launcher: SlurmLauncher) -> list[str]:
    notes = []
    if not launcher.time:
        notes.append("no launcher.time is given: the partition's default limit ends the jobs")
    if not launcher.exclusive and not launcher.cpus_per_task:
        notes.append("jobs share nodes, and each rank gets one core: launcher.cpus_per_task=N gives it more")
    if launcher.image or launcher.role_images:
        notes.append(
            "ranks run in containers, which needs pyxis; they see this folder and launcher.container_mounts, and "
            "launcher.setup runs outside of them"
        )
    return notes


def _quoted(option: str) -> str:
    """An option whose value is one word to sbatch, which takes quotes as a shell does and expands nothing."""
    name, equals, value = option.partition("=")
    return f"{name}{equals}{shlex.quote(value) if equals else ''}"
