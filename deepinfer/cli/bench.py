"""`deepinfer bench`: send the workload to the engine of this process and tell what it took, beside what the plan estimates.

Prompts are random token ids of a fixed seed and answers run to their full length, so that every run does the same work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer import __version__
from deepinfer.cli.bench_load import measure
from deepinfer.cli.bench_report import headline, report
from deepinfer.cli.out_folder import naming, open_folder
from deepinfer.cli.streams import printable_json
from deepinfer.cli.sweep_told import counted
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import Facts, probe
from deepinfer.config.machine import Host
from deepinfer.config.specs import PrefixCache
from deepinfer.config.tasks import Bench
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.engine.asked_grammar import refuse_bad_grammar
from deepinfer.engine.one_rank import of_a_run
from deepinfer.engine.unbuilt import is_simulated, refuse_to_run
from deepinfer.plan import render
from deepinfer.plan.prerequisites import missing_libraries
from deepinfer.plan.require import has_devices, missing
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import PlanErrors

if TYPE_CHECKING:
    from pathlib import Path

    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec
    from deepinfer.plan.cost.types import Figure
    from deepinfer.plan.types import Plan

FILE = "bench.jsonl"
_VERSIONED = ("deepinfer", "torch", "numpy", "numba", "triton")


def run(spec: Spec, invocation: Invocation) -> int:
    """Plan, build, measure; the table or the JSON line on stdout. Raises Refused for what cannot be planned or run."""
    assert isinstance(spec.task, Bench), "this is the verb of this task"
    if invocation.format not in ("text", "json"):
        asked = f"format={invocation.format}"
        raise Refused([Problem(asked=asked, found="bench prints text or json", fix="format=json")])
    if spec.task.slice == "rank":
        from deepinfer.cli.bench_slice import run as run_slice

        return run_slice(spec, invocation)
    facts = probe(spec)
    if spec.task.target == "serve":
        return _over_http(spec, spec.task, facts, invocation)
    try:
        plan, workload, notes = fitted(spec, facts, invocation.choices)
    except PlanErrors as error:
        raise Refused(of_a_run(error.problems, spec, facts, invocation.overrides)) from error
    libraries = missing_libraries(plan, facts.machine)
    refuse_to_run(plan, spec, missing(plan, facts), libraries, has_devices(plan, facts), invocation.overrides)
    if is_simulated(plan):
        raise Refused([_simulation(spec, plan)])
    refuse_bad_grammar(plan)
    folder = None if invocation.out is None else open_folder(invocation.out)
    notes_told = [*notes, length(spec.task, workload, estimates(spec, workload, facts, None), plan.layout.num_ranks)]
    for line in [render.summary(plan), *(f"deepinfer: {note}" for note in notes_told)]:
        print(line, file=sys.stderr, flush=True)

    from deepinfer.engine.build_world import build_engine

    graph = build_engine(plan)
    try:
        measured = measure(graph, spec.task, workload)
    finally:
        graph.engine.close()
    sizes = {"input_len": workload.prompt_tokens, "output_len": workload.output_tokens}
    result = _described(plan, spec.task, sizes, notes, invocation) | measured
    result["headline"] = msgspec.to_builtins(headline(result))
    result["estimates"] = msgspec.to_builtins(estimates(spec, workload, facts, measured["max_concurrency"]))
    _tell(result, folder, as_json=invocation.format == "json")
    return ExitCode.OTHER if result["failed"] else ExitCode.OK


def _over_http(spec: Spec, task: Bench, facts: Facts, invocation: Invocation) -> int:
    """The same load through a server: one that runs already is asked whatever the plan says of this machine."""
    from deepinfer.cli.bench_serve import run as run_served

    try:
        plan = resolve(spec, facts, invocation.choices)
    except PlanErrors as error:
        raise Refused(of_a_run(error.problems, spec, facts, invocation.overrides)) from error
    if task.base_url is None:
        libraries = missing_libraries(plan, facts.machine)
        refuse_to_run(plan, spec, missing(plan, facts), libraries, has_devices(plan, facts), invocation.overrides)
        print(render.summary(plan), file=sys.stderr, flush=True)
    return run_served(spec, task, plan, invocation, _described(plan, task, {}, [], invocation))


def _tell(result: dict[str, Any], folder: Path | None, *, as_json: bool) -> None:
    """A line more in the file of a folder, the result on stdout, and what went wrong on stderr."""
    if folder is not None:
        with naming(folder / FILE), (folder / FILE).open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
    text = msgspec.json.encode(result).decode()
    print(printable_json(text) if as_json else report(result))
    for line in dict.fromkeys([*result["notices"], *result["errors"]]):
        print(f"deepinfer: {line}", file=sys.stderr)


def fitted(spec: Spec, facts: Facts, choices: dict[str, str]) -> tuple[Plan, SteadyWorkload, list[str]]:
    """The plan, costed for what is measured: the workload as far as the model is long, with the prefix that prompts really
    share; and in words what was asked differently. Raises Refused for a workload that has no sizes."""
    workload = spec.workload
    if not isinstance(workload, SteadyWorkload):
        found, fix = "this version measures requests of one size only", "workload=chat"
        raise Refused([Problem(asked=f"workload={workload.kind}", found=found, fix=fix, code=ExitCode.OTHER)])
    plan = resolve(spec, facts, choices)
    room, notes = min(plan.model.max_model_len, plan.capacity.tokens), []
    prompt, output = workload.prompt_tokens, workload.output_tokens
    if prompt + output > room:
        output = min(output, room // 2)
        prompt = min(prompt, room - output)
        asked = f"the workload has {workload.prompt_tokens:,} + {workload.output_tokens:,} tokens a request"
        notes.append(f"{asked} and there is room for {room:,}: measured with {prompt:,} + {output:,}")
    shared = _shared_tokens(spec, workload.cached_share, prompt)
    asked = f"workload.cached_share={workload.cached_share:g}"
    if shared:
        notes.append(f"{asked}: all prompts begin with the same {shared:,} tokens, whole blocks of the cache")
    elif workload.cached_share:
        why = "prompts share no whole block" if isinstance(spec.cache, PrefixCache) else "cache=paged keeps no prefix"
        notes.append(f"{asked}: {why}, all is computed")
    if plan.drafting.depth:
        notes.append("prompts and answers are no texts: of those, more drafts may be accepted, or fewer")
    load = msgspec.structs.replace(workload, prompt_tokens=prompt, output_tokens=output, cached_share=shared / prompt)
    if load == workload:
        return plan, load, notes
    return resolve(msgspec.structs.replace(spec, workload=load), facts, choices), load, notes


def _shared_tokens(spec: Spec, share: float, prompt_tokens: int) -> int:
    """Tokens that the prompts share: a part of them, in whole blocks of a cache that keeps them. One is always computed."""
    if not isinstance(spec.cache, PrefixCache):
        return 0
    block = spec.cache.block_tokens
    return min(round(share * prompt_tokens), prompt_tokens - 1) // block * block


def estimates(spec: Spec, workload: SteadyWorkload, facts: Facts, at_once: int | None) -> tuple[Figure, ...]:
    """What the cost model says of this load, with as many sequences at once as were in flight."""
    most = spec.scheduler.max_num_seqs
    scheduler = msgspec.structs.replace(spec.scheduler, max_num_seqs=min(at_once or most, most))
    return resolve(msgspec.structs.replace(spec, workload=workload, scheduler=scheduler), facts, {}).cost.headline


def length(task: Bench, workload: SteadyWorkload, figures: Sequence[Figure], num_ranks: int) -> str:
    """How much is sent, and how long that will take: at a request rate by its clock, else by the plan's estimate."""
    sizes = f"{workload.prompt_tokens:,} + {workload.output_tokens:,} tokens"
    sent = f"{counted(task.num_requests, 'request')} of {sizes} after {task.warm_up:,} to warm up"
    if task.request_rate:
        return f"{sent}; they arrive over about {duration((task.num_requests - 1) / task.request_rate)}"
    rate = next((figure for figure in figures if figure.name == "tokens_per_s_per_gpu"), None)
    if rate is None or not rate.value:
        return sent
    tokens = task.num_requests * (workload.prompt_tokens + workload.output_tokens)
    expected = duration(tokens / (rate.value * num_ranks))
    return f"{sent}: about {expected} by the plan's estimate ({rate.said}); task.num_requests=… sends fewer"


def duration(time_s: float) -> str:
    """ "40 s", "12 minutes", "3.5 hours"."""
    if time_s < 100:
        return f"{max(time_s, 1):.0f} s"
    return f"{time_s / 60:.0f} minutes" if time_s < 6000 else f"{time_s / 3600:,.1f} hours"


def _simulation(spec: Spec, plan: Plan) -> Problem:
    why = "bench measures, and a simulation invents its times"
    if spec.executor.kind == "simulated":
        return Problem(asked="executor=simulated", found="nothing to measure", why=why, fix="executor=local")
    return Problem(asked=f"hardware={plan.hardware.option}", found="nothing to measure", why=why, fix="hardware=cpu")


def _described(
    plan: Plan, task: Bench, sizes: dict[str, int], notes: list[str], invocation: Invocation
) -> dict[str, Any]:
    """What was measured, and on what."""
    host = Host()
    versions = {name: found for name in _VERSIONED if (found := host.version(name))}
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "backend": "deepinfer",
        "model_id": plan.model.name,
        "hardware": plan.hardware.name,
        "num_ranks": plan.layout.num_ranks,
        "num_prompts": task.num_requests,
        "request_rate": task.request_rate or "inf",
        **sizes,
        "seed": task.seed,
        "notes": notes,
        "overrides": invocation.overrides,
        "choices": invocation.choices,
        "rank_digest": plan.rank_digest,
        "numerics_digest": plan.numerics_digest,
        "versions": {"deepinfer": __version__} | versions,
        "machine": {"architecture": host.architecture, "cores": host.cores, "python": host.python},
    }
