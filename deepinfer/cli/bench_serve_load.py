"""What a bench of a server sends, from the configuration: sizes that fit the model, and how requests come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.cli.bench_talks import TurnSizes, drawn_talks, read_trace, spread, turn_sizes
from deepinfer.cli.sweep_told import counted
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.paths import user_path
from deepinfer.config.workloads import SteadyWorkload, TraceWorkload

if TYPE_CHECKING:
    from deepinfer.cli.bench_talks import Talk
    from deepinfer.config.specs import Spec
    from deepinfer.config.tasks import Bench
    from deepinfer.plan.types import Plan


def talks_of(spec: Spec, task: Bench, plan: Plan) -> tuple[list[Talk], list[str]]:
    """The conversations of a load, with their times, and in words what differs from what was asked. Raises Refused."""
    rng, vocab_size = np.random.default_rng(task.seed), plan.model.config.vocab_size
    room, workload = min(plan.model.max_model_len, plan.capacity.tokens), spec.workload
    try:
        if isinstance(workload, TraceWorkload):
            return _traced(workload, task, room, vocab_size)
        assert isinstance(workload, SteadyWorkload), "there are two kinds"
        sizes, notes = fitted_sizes(workload, task.turns, room)
    except ValueError as error:
        raise Refused([Problem(asked="the workload", found=str(error), code=ExitCode.CONFIG)]) from error
    shared = round(workload.cached_share * sizes.first) if task.turns == 1 else 0
    beginning = rng.integers(0, vocab_size, shared).tolist()
    number = -(-task.num_requests // task.turns)
    talks = drawn_talks(number, sizes, vocab_size, rng, beginning=beginning)
    if task.request_rate:
        spread(talks, task.request_rate / task.turns, task.arrivals, rng)
    if task.turns > 1:
        turns = f"{sizes.first:,} tokens, then {sizes.added:,} more a turn, answers of {sizes.output:,}"
        notes.append(f"{counted(number, 'conversation')} of {task.turns} turns: {turns}")
    elif shared:
        notes.append(f"all prompts begin with the same {shared:,} tokens")
    return talks, notes


def fitted_sizes(workload: SteadyWorkload, turns: int, room: int) -> tuple[TurnSizes, list[str]]:
    """Sizes of the turns, scaled down where the longest would not fit into `room` tokens. Raises ValueError."""
    prompt, output = workload.prompt_tokens, workload.output_tokens
    sizes = turn_sizes(prompt, output, workload.cached_share, turns)
    if sizes.longest <= room:
        return sizes, []
    output = max(1, min(output, room // (2 * turns)))
    cut = prompt = min(prompt, room - output)
    while cut and (sizes := turn_sizes(cut, output, workload.cached_share, turns)).longest > room:
        cut -= max(1, cut // 50)
    asked = f"the workload has {workload.prompt_tokens:,} + {workload.output_tokens:,} tokens a request"
    return sizes, [f"{asked} and there is room for {room:,}: measured with {cut:,} + {output:,}"]


def _traced(workload: TraceWorkload, task: Bench, room: int, vocab_size: int) -> tuple[list[Talk], list[str]]:
    if workload.path is None:
        raise Refused([Problem(asked="workload=trace", found="no file", fix="workload=trace workload.path=FILE")])
    path = user_path(workload.path, "workload.path")
    talks, notes = read_trace(path, task.num_requests, room, vocab_size, task.seed)
    if task.request_rate:
        spread(talks, task.request_rate, task.arrivals, np.random.default_rng(task.seed))
        notes.append(f"task.request_rate={task.request_rate:g} stands in for the times of the trace")
    return talks, notes
