"""Loads for a built engine: a batch that answers in step until it is told to end, and one whose answers end by themselves."""

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from msgspec import structs

from deepinfer.cli.bench_slice_floors import floor_of, rates_of
from deepinfer.config.compose import load_with_choices
from deepinfer.config.errors import Refused
from deepinfer.config.facts import load_chip, probe
from deepinfer.engine import build_device
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_assembly import Loaded
from deepinfer.engine.engine import Engine
from deepinfer.engine.unbuilt import refuse_to_run
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.v41 import shape_of
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work
from deepinfer.plan.require import missing
from deepinfer.plan.resolve import resolve


def build(*overrides: str, graphs: bool = True) -> EngineGraph:
    """The engine of a configuration. Where this machine cannot run it, the reasons go to stderr and the program ends.

    Without `graphs` a GPU's kernels are launched one by one.
    """
    try:
        spec, choices = load_with_choices(*overrides)
        facts = probe(spec)
        plan = resolve(spec, facts, choices)
        refuse_to_run(plan, spec, missing(plan, facts))
        with nullcontext() if graphs else patch.object(build_device, "Loaded", _without_graphs):
            return build_graph(plan)
    except Refused as refused:
        sys.exit(str(refused))


def _without_graphs(**fields: Any) -> Loaded:
    return Loaded(**fields | {"graphs": False})


def hardware(asked: str | None, *, recorded: bool) -> str:
    """The chip to measure: the one asked for, else an H200, else the CPU, which is `recorded` only where it was asked for."""
    if asked or torch.cuda.is_available():
        return asked or "h200"
    none_here = f"no CUDA device here: torch {torch.__version__} finds none"
    if recorded:
        sys.exit(f"{none_here}; nothing was measured; to record this machine's CPU add: --hardware cpu")
    print(f"{none_here}; the CPU is measured", file=sys.stderr)
    return "cpu"


def on_gpu(graph: EngineGraph) -> bool:
    return graph.plan.hardware.kind == "cuda"


def where(graph: EngineGraph) -> dict[str, str]:
    """The device's name for a measured line, where it is not the machine's own processor."""
    return {"device": torch.cuda.get_device_name()} if on_gpu(graph) else {}


def floors_ms(graph: EngineGraph, batch: int, context: int) -> dict[str, float]:
    """The least that weights, caches and products of a decode step and of all prompts take at measured rates."""
    plan, (role,) = graph.plan, graph.plan.layout.roles
    chip = load_chip(role.hardware.option)
    shape, group = shape_of(plan.model.config, plan.cache), Group(chip=chip, engram=role.engram)
    at_once = min(batch, max(1, plan.scheduler.max_num_batched_tokens // context))
    works = decode_work(shape, group, batch, context), prefill_work(shape, group, Prompt(tokens=context), at_once)
    decode, prompts = (floor_of(work, chip, rates_of(chip, role.hardware.option)).ms for work in works)
    return {"decode_floor_ms": round(decode, 5), "prefill_floor_ms": round(prompts * batch / at_once, 5)}


def settle() -> None:
    """Wait for what a GPU still does."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class SteadyBatch:
    """Greedy answers to prompts int64 [B, tokens], that end only when told to. `prefill_s`: until every one had a token."""

    def __init__(self, graph: EngineGraph, prompts: np.ndarray) -> None:
        self.engine = graph.engine
        room = graph.limits.max_model_len - prompts.shape[1]
        params = SamplingParams(max_tokens=room, temperature=0.0, ignore_eos=True)
        settle()
        started_s = time.perf_counter()
        self.ids = [self.engine.submit(prompt, params)[0] for prompt in prompts]
        silent = set(self.ids)
        while silent:
            silent -= {event.request_id for event in self.engine.step() if event.token_ids}
        settle()
        self.prefill_s = time.perf_counter() - started_s

    def step(self) -> None:
        self.engine.step()

    def end(self) -> None:
        for request_id in self.ids:
            self.engine.finish(request_id)
        while self.engine.has_work:
            self.engine.step()


@dataclass(frozen=True)
class Served:
    """What `serve` measured: sampled tokens and the time they took, and the answer to each prompt."""

    tokens: int
    seconds: float
    answers: list[tuple[int, ...]]
    accepted_length: float | None

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def serve(engine: Engine, prompts: Sequence[np.ndarray], params: SamplingParams) -> Served:
    """All prompts at once, until every answer has ended.

    The seed of prompt i is `params.seed` + i where there is one. Raises RuntimeError where a request fails.
    """
    before, started_s = engine.stats(), time.perf_counter()
    answers: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        own = params if params.seed is None else structs.replace(params, seed=params.seed + number)
        answers[engine.submit(prompt, own)[0]] = []
    running = len(answers)
    while running:
        for event in engine.step():
            answers[event.request_id] += event.token_ids
            if event.finish_reason == "error":
                raise RuntimeError(f"a request failed: {event.error}")
            running -= event.finish_reason is not None
    seconds, after = time.perf_counter() - started_s, engine.stats()
    while engine.has_work:
        engine.step()
    rounds = after.verify_rounds - before.verify_rounds
    accepted = sum(after.accepted_at) - sum(before.accepted_at)
    return Served(
        tokens=after.sampled_tokens - before.sampled_tokens,
        seconds=seconds,
        answers=[tuple(tokens) for tokens in answers.values()],
        accepted_length=1 + accepted / rounds if rounds else None,
    )
