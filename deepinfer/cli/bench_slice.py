"""`deepinfer bench task.slice=rank`: the steps of one rank of a layout, timed on the one device of its kind that is here.

The rank holds what the plan gives it, with invented weights; its experts get as many rows as all ranks would send. What goes
over links is not carried out but modelled, and told apart.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer import __version__
from deepinfer.arch.routing import ZIPF
from deepinfer.cli.bench_slice_checks import (
    NO_CODE_FIX,
    fitting_points,
    memory_of,
    no_code,
    refuse_slice,
    room_of,
    slice_chip,
    without_code,
)
from deepinfer.cli.bench_slice_floors import FP8, rates_of
from deepinfer.cli.bench_slice_points import Reckoning
from deepinfer.cli.bench_slice_report import headline, report, spoken
from deepinfer.cli.out_folder import naming, open_folder
from deepinfer.cli.streams import printable_json
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import Facts, probe
from deepinfer.config.machine import Host
from deepinfer.config.tasks import Bench
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.engine.one_rank import of_a_run
from deepinfer.plan import render
from deepinfer.plan.cost.acceptance import yield_of
from deepinfer.plan.cost.calibration import calibration_of
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.v41 import shape_of
from deepinfer.plan.quantities import counted
from deepinfer.plan.resolve import resolve

if TYPE_CHECKING:
    from deepinfer.cli.bench_slice_checks import Points
    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec
    from deepinfer.engine.rank_slice.share import RankShare
    from deepinfer.plan.types import Plan, RolePlan

Line = dict[str, Any]
FILE = "bench_slice.jsonl"
KEEP = 140  # rows that conf/replay/compact.yaml keeps
_VERSIONED = ("torch", "triton", "cuda-bindings", "numpy")
_PHASES = {"all": ("decode", "prefill"), "decode": ("decode",), "prefill": ("prefill",)}


def run(spec: Spec, invocation: Invocation) -> int:
    """Plan, build a rank of every role, time its steps; the table or the JSON line on stdout. Raises Refused."""
    assert isinstance(spec.task, Bench), "this is the verb of this task"
    facts = probe(spec)
    plan = _planned(spec, facts, invocation)
    own = () if invocation.config_dir is None else ("--config-dir", invocation.config_dir)
    refuse_slice(plan, spec, facts, (*own, *invocation.overrides))
    folder = None if invocation.out is None else open_folder(invocation.out)
    print(render.summary(_as_computed(plan)), file=sys.stderr, flush=True)
    common = described(plan, invocation)

    def tell(line: Line) -> None:
        if says := spoken(line):
            print(f"deepinfer: {says}", file=sys.stderr, flush=True)
        if folder is not None:
            with naming(folder / FILE), (folder / FILE).open("ab") as file:
                file.write(msgspec.json.encode(common | line) + b"\n")

    roles = [measured(plan, spec, facts, role, tell) for role in plan.layout.roles]
    result = common | {"roles": roles, "headline": msgspec.to_builtins(headline(roles))}
    text = msgspec.json.encode(result).decode()
    print(printable_json(text) if invocation.format == "json" else report(result))
    return ExitCode.OK


def _planned(spec: Spec, facts: Facts, invocation: Invocation) -> Plan:
    """Raises Refused, of a chip without code for that alone."""
    try:
        return resolve(spec, facts, invocation.choices)
    except Refused as refused:
        if name := without_code(spec):
            raise Refused([no_code(name, NO_CODE_FIX)]) from refused
        raise Refused(of_a_run(refused.problems, spec, facts, invocation.overrides)) from refused


def _as_computed(plan: Plan) -> Plan:
    """With what a CPU really computes its ops with, instead of what its engine would take."""
    if plan.hardware.kind != "cpu":
        return plan
    roles = tuple(
        msgspec.structs.replace(
            role,
            ops=tuple(msgspec.structs.replace(op, backend="plain torch of the fused operations") for op in role.ops),
        )
        for role in plan.layout.roles
    )
    return msgspec.structs.replace(plan, layout=msgspec.structs.replace(plan.layout, roles=roles))


def share_of(plan: Plan, role: RolePlan) -> RankShare:
    """What the first rank of a role holds."""
    from deepinfer.engine.rank_slice.share import RankShare

    rank = plan.layout.ranks[role.first_rank]
    experts, drafts = (stop - start for start, stop in (rank.experts, rank.draft_experts))
    return RankShare(
        ranks=role.expert,
        experts=experts,
        draft_experts=drafts,
        table_rows=tuple(stop - start for start, stop in rank.engram_rows),
        host_tables=role.engram == "host",
    )


def reckoning_of(plan: Plan, spec: Spec, facts: Facts, role: RolePlan) -> Reckoning:
    """Floors and links of a role as the cost model has them."""
    chip, drafting, config = slice_chip(spec, facts, role), plan.drafting, plan.model.config
    group = Group(
        chip=chip,
        num_ranks=role.num_ranks // role.replicas,
        context=role.context,
        expert=role.expert,
        redundant_experts=role.redundant_experts,
        engram=role.engram,
    )
    option = role.hardware.option
    accepted = spec.workload.accepted_tokens if isinstance(spec.workload, SteadyWorkload) else "auto"
    return Reckoning(
        trunk=shape_of(config, plan.cache),
        drafting=shape_of(config, plan.cache, num_draft_layers=drafting.num_draft_layers),
        group=group,
        rates=rates_of(chip, option),
        calibration=calibration_of(spec.cost, chip, facts.cost, option),
        yields=yield_of(drafting.kind, drafting.depth, drafting.verify_length, accepted),
    )


def measured(plan: Plan, spec: Spec, facts: Facts, role: RolePlan, tell: Callable[[Line], None]) -> dict[str, Any]:
    """Everything of one role: what its rank holds, its points, and where the time of a step of each phase goes.

    `tell` gets each of them as a line as soon as it is known, so that a run that is stopped leaves what it had.
    """
    assert isinstance(spec.task, Bench)
    from deepinfer.cli.bench_slice_steps import RankBench

    reckoning, share, room = reckoning_of(plan, spec, facts, role), share_of(plan, role), room_of(plan, role)
    phases = _PHASES[role.name]
    points, notes = fitting_points(plan, spec.task, room, phases)
    print(f"deepinfer: {length(points, plan)}", file=sys.stderr, flush=True)
    memory = memory_of(plan, role)
    bench = RankBench(plan, share, memory, reckoning, points, keep=plan.numerics.replay_keep_tokens or KEEP)
    head = {
        "role": role.name,
        "ranks": role.num_ranks,
        "expert_ranks": role.expert,
        "share": msgspec.to_builtins(share),
        "engram": role.engram,
        "bytes": bench.held(room),
        "memory": None if bench.worst is None else msgspec.to_builtins(bench.worst) | {"apart": bench.worst.apart},
        "kernels": bench.kernels,
        "rates": msgspec.to_builtins(reckoning.rates),
        "seconds_to_build": bench.built_s,
        "peak_flops": _fp8_peak(reckoning),
        "assumed": list(_assumed(reckoning)),
        "notes": notes,
    }
    tell({"what": "share"} | head)
    if bench.worst is not None:
        tell({"what": "memory", "role": role.name} | head["memory"])
    found: dict[str, list[Any]] = {phase: [] for phase in phases}
    for phase in phases:
        for point in bench.decode() if phase == "decode" else bench.prefill():
            found[phase].append(msgspec.to_builtins(point))
            tell({"what": phase, "role": role.name} | found[phase][-1])
    ops = bench.ops(phases)
    for step, entries in ops.items():
        tell({"what": "ops", "role": role.name, "step": step, "entries": entries})
    del bench
    gc.collect()
    return head | found | {"ops": ops}


def length(points: Points, plan: Plan) -> str:
    """How many steps are timed, before the first of them."""
    decode, prefill = (len(points.routing) * count for count in (len(points.decode), 2 * len(points.prompts)))
    keys = ", ".join(f"task.slice_{name}" for name in ("sequences", "contexts", "prompts", "routing"))
    said = (
        f"{counted(decode + prefill, 'point')} to time, decode {decode:,} and prefill {prefill:,}; {keys} give others"
    )
    if plan.hardware.kind != "cpu":
        return said
    return f"{said}. On a CPU as many as by default take minutes, and say nothing about an accelerator"


def _fp8_peak(reckoning: Reckoning) -> float:
    """Of the data sheet, FLOP/s; 0 where it names none."""
    peak = reckoning.group.chip.peak_flops_by_dtype.get(FP8)
    return 0.0 if peak is None else peak.value


def _assumed(reckoning: Reckoning) -> Iterator[str]:
    links = f"links as in the cost model, {reckoning.calibration.name}"
    yield f"modelled, not measured: dispatch and combine of rows, n-gram rows of other ranks' tables; {links}"
    yield "balanced: each rank of the group has as many rows and each expert is chosen as often"
    yield f"skewed: the i-th most popular expert is chosen as often as i^-{ZIPF:g} says, experts lie on ranks in random order"
    yield "and this is the rank that gets most, in every layer; nothing is balanced by copies"
    yield "an expert's rows are the rank's own rows again, where a group would send it other ranks' rows"
    yield "sequences of a step are equally long; nothing is appended, so that every step does the same work"
    if reckoning.yields.drafts:
        yield f"tokens of a step with drafts: {reckoning.yields.accepted:g} a sequence, {reckoning.yields.source}"


def described(plan: Plan, invocation: Invocation) -> dict[str, Any]:
    """What was measured, and on what."""
    host = Host()
    versions = {name: found for name in _VERSIONED if (found := host.version(name))}
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "figure": "rank_slice",
        "model_id": plan.model.name,
        "hardware": plan.hardware.name,
        "layout": plan.choices.get("parallel", ""),
        "num_ranks": plan.layout.num_ranks,
        "overrides": invocation.overrides,
        "choices": invocation.choices,
        "numerics_digest": plan.numerics_digest,
        "versions": {"deepinfer": __version__} | versions,
        "machine": {"architecture": host.architecture, "cores": host.cores, "python": host.python},
    }
