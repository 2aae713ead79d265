"""`deepinfer launch launcher=… out=DIR`: write the files that start exactly this plan; without out=, tell of them."""

import shlex
import sys
from collections.abc import Iterator

from msgspec import structs

from deepinfer.cli.doctor_ranks import rank_findings
from deepinfer.cli.launch_folder import write_folder
from deepinfer.cli.serve_address import listen_problems
from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import Facts, probe
from deepinfer.config.paths import user_path
from deepinfer.config.runnable import NOT_BUILT, many_ranks, unbuilt
from deepinfer.config.specs import Spec
from deepinfer.config.surroundings import DistributedExecutor
from deepinfer.config.tasks import Launch
from deepinfer.engine.one_rank import words
from deepinfer.engine.unbuilt import is_simulated
from deepinfer.plan.launch import render
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.launch.readme import MANIFEST
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import ModelPlan, Plan
from deepinfer.sampling.params import asked_sampling

SECTION = 9  # columns of a line's first word, as in a plan's text
SHOWN = 8  # files, and commands, that are told; README.md has all commands


def run(spec: Spec, invocation: Invocation) -> int:
    """Plan, render, write; what was written and what to type next on stdout. Raises Refused for what cannot be planned,
    started by this launcher, or written into this folder."""
    assert isinstance(spec.task, Launch), "this is the verb of this task"
    facts = probe(spec)
    plan = resolve(spec, facts, invocation.choices)
    serving = spec.serving if spec.task.run == "serve" else None
    if serving is not None and (problems := listen_problems(serving)):
        raise Refused(problems)
    asked = tuple(sorted(asked_sampling(invocation.overrides))) if serving is not None else ()
    plan = structs.replace(plan, task=spec.task.run, model=_absolute(plan), serving=serving, asked_sampling=asked)
    lacks = _lacks(plan, spec)
    rendered = render(plan, spec.launcher, spec.cluster, lacks)
    if invocation.out is not None:
        write_folder(user_path(invocation.out, "out"), rendered.files)
    print("\n".join(_told(plan, rendered, invocation.out, lacks)))
    for line in (
        *_will_refuse(plan, lacks),
        *_nobody_restarts(spec),
        *_lacks_room(plan, spec, facts),
        *rendered.warnings,
    ):
        print(f"deepinfer: {line}", file=sys.stderr)
    return ExitCode.OK


def _absolute(plan: Plan) -> ModelPlan:
    """The model with a path that means the same in every working directory."""
    model = plan.model
    if model.source != "folder":
        return model
    return structs.replace(model, location=str(user_path(model.location, "model.path").absolute()))


def _told(plan: Plan, rendered: Rendered, out: str | None, lacks: tuple[str, ...]) -> Iterator[str]:
    layout = plan.layout
    ranks, nodes = (
        f"{n} {noun}{'s' * (n != 1)}" for n, noun in ((layout.num_ranks, "rank"), (layout.num_nodes, "node"))
    )
    yield _line("launch", f"{plan.model.name}: {ranks} on {nodes}, task {plan.task}, plan {plan.rank_digest}")
    if lacks:
        yield _line("state", "NOT RUNNABLE with this version, and every file says so; the reason is on stderr")
    sizes = {name: len(text.encode()) for name, text in rendered.files.items()}
    yield _line(
        "wrote" if out else "would", f"{'' if out else 'write '}{len(sizes) + 1} files{f' to {out}' if out else ''}"
    )
    for name in list(sizes)[:SHOWN]:
        yield _line("file", f"{name:<24} {sizes[name]:>9,} B")
    if len(sizes) > SHOWN:
        yield _line("file", f"… and {len(sizes) - SHOWN} more")
    yield _line("file", f"{MANIFEST:<24} {'':>9}   digests of the others")
    steps = [f"cd {shlex.quote(out)}", *rendered.steps] if out else ["the same command with out=DIR"]
    for step in steps[: SHOWN + 1]:
        yield _line("type", step)
    if len(steps) > SHOWN + 1:
        yield _line("type", f"… and {len(steps) - SHOWN - 1} more, on their nodes: see README.md")
    for note in (*rendered.warnings, *rendered.notes):
        yield _line("note", note)


def _line(section: str, text: str) -> str:
    return f"{section:<{SECTION}}{text}".rstrip()


def _lacks(plan: Plan, spec: Spec) -> tuple[str, ...]:
    """What the plan asks for and this version of deepinfer has no code for."""
    asked = [f"task.run={plan.task}"] if plan.task in NOT_BUILT["task.kind"] else []
    simulated = is_simulated(plan)
    asked += [] if simulated else [problem.asked for problem in unbuilt(spec)]
    kinds = ["virtual"] if simulated else [role.hardware.kind for role in plan.layout.roles]
    asked += [problem.asked for problem in many_ranks(plan.layout.num_ranks, kinds, "")]
    return tuple(dict.fromkeys(asked))


def _will_refuse(plan: Plan, lacks: tuple[str, ...]) -> Iterator[str]:
    if not lacks:
        return
    spread = any(lack.startswith("parallel:") for lack in lacks)
    instead = f"; {words(plan, 'hardware=cpu')} task.run=generate starts ranks on CPUs" if spread else ""
    yield f"the ranks of this version will refuse to start: it has no code for {', '.join(lacks)}{instead}"


def _lacks_room(plan: Plan, spec: Spec, facts: Facts) -> Iterator[str]:
    """What this machine lacks for ranks that run.sh would start on it."""
    if spec.launcher.kind != "local" or any(role.hardware.kind != "cpu" for role in plan.layout.roles):
        return
    for finding in rank_findings(plan, facts.machine):
        if not finding.met:
            yield f"{finding.what}: the ranks need {finding.needs}, this machine has {finding.found}; {finding.how}"


def _nobody_restarts(spec: Spec) -> Iterator[str]:
    """Only a driver that started its ranks itself starts them again."""
    executor = spec.executor
    if isinstance(executor, DistributedExecutor) and executor.on_rank_loss == "requeue":
        yield (
            "executor.on_rank_loss=requeue does nothing under a launcher: whoever runs these files starts ranks again, and "
            "requests end when a rank is lost; executor.on_rank_loss=fail"
        )
