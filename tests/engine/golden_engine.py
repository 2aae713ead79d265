"""Engines on the golden checkpoint, built from a plan as the command line would."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"


def small_plan(*overrides: str) -> Plan:
    small = ["hardware=cpu", "model.max_model_len=512", "scheduler.max_num_seqs=8", "model.threads=1"]
    spec = load(*_unless_given(small, overrides), *overrides)
    return resolve(spec, probe(spec))


def golden_plan(*overrides: str) -> Plan:
    return small_plan(*_unless_given([f"model.path={GOLDEN / 'tiny_a'}"], overrides), *overrides)


def _unless_given(ours: list[str], overrides: tuple[str, ...]) -> list[str]:
    """Those of our overrides whose keys nobody else sets: a key may be given once."""
    theirs = {override.partition("=")[0] for override in overrides}
    return [override for override in ours if override.partition("=")[0] not in theirs]


def golden_graph(*overrides: str) -> EngineGraph:
    return build_graph(golden_plan(*overrides), poison_freed=True)


def run(graph: EngineGraph, prompts: list[np.ndarray], params: list[SamplingParams]) -> list[dict]:
    """Everything that came of each prompt: tokens, reason, log probabilities of prompt and answer as raw bits."""
    engine = graph.engine
    ids = [engine.submit(prompt, one)[0] for prompt, one in zip(prompts, params)]
    got = {i: {"tokens": [], "logprobs": [], "prompt": [], "reason": None} for i in ids}
    while engine.has_work:
        for event in engine.step():
            mine = got[event.request_id]
            mine["tokens"] += event.token_ids
            mine["logprobs"] += [bits(entry) for entry in event.logprobs or []]
            mine["prompt"] += [bits(entry) for entry in event.prompt_logprobs or []]
            mine["reason"] = event.finish_reason or mine["reason"]
            assert event.error is None
    return [got[i] for i in ids]


def bits(entry) -> tuple:
    return entry.token_ids.tolist(), entry.logprobs.tobytes(), entry.rank
