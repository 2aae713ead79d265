"""The load of `deepinfer bench`: what is sent, and what the engine and its clock say of it."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from tqdm.std import tqdm  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from deepinfer.config.tasks import Bench
    from deepinfer.config.workloads import SteadyWorkload
    from deepinfer.engine.build import EngineGraph
    from deepinfer.engine.build_world import FleetGraph
    from deepinfer.engine.stats import EngineStats

WARM_UP_TOKENS = 8  # longest answer of a request that is not counted


def measure(graph: EngineGraph | FleetGraph, task: Bench, workload: SteadyWorkload) -> dict[str, Any]:
    """Run the load, after its warm-up; figures of `engine.latencies` and the engine's own counts."""
    from deepinfer.engine.latencies import figures
    from deepinfer.engine.load import random_requests, run_load
    from deepinfer.sampling.params import from_config

    rng, vocab_size = np.random.default_rng(task.seed), graph.limits.vocab_size
    exact = {"ignore_eos": True, "n": 1, "stop": (), "stop_token_ids": (), "min_tokens": 0, "seed": task.seed}
    params = from_config(graph.plan.sampling)
    params = msgspec.structs.replace(params, max_tokens=workload.output_tokens, **exact)
    short = msgspec.structs.replace(params, max_tokens=min(workload.output_tokens, WARM_UP_TOKENS))
    concurrency = concurrency_of(task, graph.num_engines * graph.limits.max_num_seqs)
    prompts = partial(
        random_requests,
        prompt_tokens=workload.prompt_tokens,
        vocab_size=vocab_size,
        rng=rng,
        beginning=rng.integers(0, vocab_size, round(workload.cached_share * workload.prompt_tokens)),
    )
    # One after another where prefixes are kept: the first leaves the shared blocks, the second the state at their end.
    keeps_prefixes = graph.engine.stats().prefix is not None
    run_load(graph.engine, prompts(task.warm_up), short, concurrency=1 if keeps_prefixes else concurrency)
    before = graph.engine.stats()
    requests = prompts(task.num_requests, request_rate=task.request_rate)
    with tqdm(total=len(requests), unit="request", disable=not sys.stderr.isatty(), leave=False) as bar:
        duration_s = run_load(graph.engine, requests, params, concurrency=concurrency, on_finish=lambda _: bar.update())
    after = graph.engine.stats()
    counts = ("steps", "steps_ahead", "preemptions", "recomputed_tokens")
    host_s = max(0.0, after.host_s - before.host_s)  # at async_depth 1 the device may work while nobody is in a step
    return {
        **figures(requests, duration_s),
        "max_concurrency": None if concurrency is None else min(concurrency, task.num_requests),
        "errors": [request.error for request in requests if request.error],
        "engine": {name: getattr(after, name) - getattr(before, name) for name in counts},
        "speculation": speculation_counts(before, after),
        "prefix": prefix_counts(before, after),
        "host_share": host_s / max(after.step_s - before.step_s, 1e-9),
        "notices": [*graph.notices, *graph.engine.take_notices()],
    }


def prefix_counts(before: EngineStats, after: EngineStats) -> dict[str, Any] | None:
    """What the prefix cache gave between two moments; None where there is none."""
    if after.prefix is None or before.prefix is None:
        return None
    names = ("queries", "hits", "query_tokens", "saved_tokens", "evicted_blocks", "evicted_snapshots", "lost_snapshots")
    found: dict[str, Any] = {name: getattr(after.prefix, name) - getattr(before.prefix, name) for name in names}
    found["hit_rate"] = found["hits"] / found["queries"] if found["queries"] else None
    found["saved_share"] = found["saved_tokens"] / found["query_tokens"] if found["query_tokens"] else None
    return found


def speculation_counts(before: EngineStats, after: EngineStats) -> dict[str, Any] | None:
    """What was checked and accepted between two moments, by depth, 1 first; None where nothing was."""
    rounds = after.verify_rounds - before.verify_rounds
    if not rounds:
        return None
    checked_at = [new - old for new, old in zip(after.checked_at, before.checked_at)]
    accepted_at = [new - old for new, old in zip(after.accepted_at, before.accepted_at)]
    return {
        "rounds": rounds,
        "accepted_length": 1 + sum(accepted_at) / rounds,
        "checked_at": checked_at,
        "accepted_at": accepted_at,
        "acceptance_at": [
            accepted / checked if checked else None for accepted, checked in zip(accepted_at, checked_at)
        ],
    }


def concurrency_of(task: Bench, max_num_seqs: int) -> int | None:
    """Requests in flight at most; None for no limit."""
    if task.concurrency != "auto":
        return task.concurrency
    return None if task.request_rate else max_num_seqs
