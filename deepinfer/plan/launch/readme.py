"""README.md of a launch: what to type, who meets where, and how a rank knows that it belongs."""

from collections import Counter

from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.config.runnable import NOT_BUILT
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.kubernetes_http import service_name
from deepinfer.plan.launch.requests import grace_s, is_reachable
from deepinfer.plan.ranks import rank_lines
from deepinfer.plan.types import Plan

README = "README.md"
MANIFEST = "files.sha256"
CHECKS = f"""\
Ranks take everything from `{PLAN_FILE}` and compose nothing. Each refuses to start where that file was edited or comes from
another version of deepinfer, where WORLD_SIZE is not the number of ranks above, where its node runs another number of
ranks, and where its node lacks devices or the planned weights."""


def readme(job: Job, rendered: Rendered) -> str:
    """Markdown for the operator."""
    plan = job.plan
    steps = "\n".join(rendered.steps)
    notes = "".join(f"\n- {note}" for note in (*(f"**{text}**" for text in rendered.warnings), *rendered.notes))
    return f"""\
# {plan.model.name} on {_chips(plan)}
{_not_runnable(job)}
Written by `deepinfer launch` {plan.deepinfer} for `launcher={job.launcher.kind}`; the ranks are to {_task(plan.task)}.
To change anything, launch again into this folder: files that nobody edited are replaced. `sha256sum -c {MANIFEST}` checks it.

## Start

{"In this folder, once it is runnable:" if job.lacks else "In this folder:"}

```sh
{steps}
```
{notes}

## Worlds

Each replica of a role is a world of its own: its ranks start and fail together.

| world | ranks | of the plan | nodes | ranks a node | meets on port |
|---|---|---|---|---|---|
{_worlds(job)}

{CHECKS}
{_requests(job)}{_not_here(plan)}
Rank digest `{plan.rank_digest}`, numerics digest `{plan.numerics_digest}`.

## Ranks

```text
{chr(10).join(rank_lines(plan))}
```
"""


def _not_runnable(job: Job) -> str:
    """What an operator must know before all else."""
    if not job.lacks:
        return ""
    kept = {"kubernetes": "the replicas stand at 0"}.get(job.launcher.kind, "the scripts end with this sentence")
    return f"""
**{job.not_runnable}.**
The files show what will be started; until then {kept}. Launch again with a version of deepinfer that has
the code: ranks take a plan of their own version only.
"""


def _requests(job: Job) -> str:
    """Where the worlds are asked, and how they are stopped."""
    plan, launcher = job.plan, job.launcher
    if plan.serving is None:
        return ""
    host, port = plan.serving.host, plan.serving.port
    several = any(role.replicas > 1 for role in plan.layout.roles) and port
    behind = "; replica 1 at the port behind it, and so on" if several else ""
    where = f"on its own node, at {host} port {port or 'of its own choice'}{behind}"
    if isinstance(launcher, KubernetesLauncher):
        names = [service_name(launcher, role.name) for role in plan.layout.roles]
        services = f"; inside the cluster {' and '.join(f'http://{name}:{port}' for name in names)}"
        where = f"in its own pod, at {host} port {port}{services if is_reachable(plan) else ''}"
    killed = "" if launcher.kind == "slurm" else f", and ranks are killed within {grace_s(plan)} s of the signal"
    return f"""
## Requests

Rank 0 of each world answers HTTP {where}.
`/health` says when it is ready. The ports above are for ranks.
After SIGTERM it takes no new ones and lets the running ones finish, for {plan.serving.drain_s:g} s at most (`serving.drain_s`);
what then still runs is ended with an error{killed}.
"""


def _not_here(plan: Plan) -> str:
    """What the ranks of this version do not have, and a reader would look for."""
    lines = []
    if len(plan.layout.roles) > 1 and "disaggregated" in NOT_BUILT["deploy.kind"]:
        lines.append("- The router, and the transfer of caches: nothing here tells prefill where decode is.")
    return "\n".join(["", "## Not in this version", "", *lines, ""]) if lines else ""


def _chips(plan: Plan) -> str:
    """ "64 × NVIDIA H200", or the chips of each role."""
    counts: Counter[str] = Counter()
    for role in plan.layout.roles:
        counts[role.hardware.name] += role.num_ranks
    return " and ".join(f"{count} × {name}" for name, count in counts.items())


def _task(task: str) -> str:
    return {"serve": "serve requests", "generate": "answer the shipped prompts and end"}.get(task, task)


def _worlds(job: Job) -> str:
    rows = []
    for world in job.worlds:
        ranks = f"{world.first_rank}-{world.first_rank + world.size - 1}" if world.size > 1 else str(world.first_rank)
        a_node = ", ".join(str(count) for count in dict.fromkeys(world.node_ranks))
        port = job.launcher.master_port if job.launcher.kind == "kubernetes" else job.port(world)
        rows.append(f"| {world.name} | {world.size} | {ranks} | {world.num_nodes} | {a_node} | {port} |")
    return "\n".join(rows)
