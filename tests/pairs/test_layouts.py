"""On equals off for ranks: every layout of up to four processes answers as one process does, bit for bit, whatever else is on.

Processes of this machine that meet over gloo, the trained tiny model, greedy and drawn answers, log probabilities included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest
from features import SCHEMA, prompts, settings
from msgspec.structs import replace as changed

from deepinfer.api import LLM, RequestOutput, SamplingParams
from deepinfer.engine.stats import EngineStats
from deepinfer.structured import JsonSchema

MOST = 4  # processes
SMALL = ("hardware=cpu", "model.max_model_len=1536", "scheduler.max_num_seqs=6", "model.threads=1")
DRAFTS = ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false")
EXACT = "sampling=reproducible"


@dataclass(frozen=True)
class Features:
    """`grammar`: one answer is held to a schema. `one_home`: a lossy option, which only layouts that never add up partial
    sums repeat bit for bit."""

    overrides: tuple[str, ...]
    grammar: bool = False
    one_home: bool = False
    waves: tuple[tuple[str, ...], ...] = (
        ("json", "story"),
        ("tool", "story", "json"),
    )  # those of the second begin alike


FEATURES = {
    "plain": Features((EXACT,)),
    "drafts": Features((EXACT, *DRAFTS)),
    "everything": Features((EXACT, *DRAFTS, "cache=prefix", "scheduler.async_depth=1"), grammar=True),
    "replayed": Features(
        (EXACT, "cache=prefix", "replay.on_hit=exact", "speculation=ngram"), waves=(("long",), ("json", "other"))
    ),
    "chunks": Features(
        (EXACT, *DRAFTS, "scheduler.max_prefill_tokens=50", "scheduler.max_num_batched_tokens=70", "cache=prefix")
    ),
    "compact": Features(("replay=compact", "cache=prefix", "scheduler.async_depth=1"), one_home=True),
}
LAYOUTS = [
    (dp, cp, ep)
    for dp, cp, ep in product(range(1, MOST + 1), repeat=3)
    if 1 < dp * cp <= MOST and dp * cp % ep == 0 and ep != 3
]
CASES = [
    pytest.param(layout, name, id=f"dp{layout[0]}-cp{layout[1]}-ep{layout[2]}-{name}")
    for layout in LAYOUTS
    for name, features in FEATURES.items()
    if layout[2] == 1 or not features.one_home
]
Bits = list[tuple]


def test_the_layouts_are_those_that_fit() -> None:
    assert {(2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2), (4, 1, 4), (2, 2, 1), (2, 2, 2), (2, 2, 4), (1, 4, 4)} <= {
        *LAYOUTS
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize(("layout", "name"), CASES)
def test_a_layout_changes_nothing(layout: tuple[int, int, int], name: str) -> None:
    degrees = zip(("attention_dp", "context", "expert"), layout)
    wanted, _ = alone(name)
    found, stats = answers(name, *(f"parallel.{degree}={number}" for degree, number in degrees))
    assert found == wanted
    assert_acted(name, stats, finds_prefixes=layout[0] == 1)  # of several indices each has a cache of its own


@cache
def alone(name: str) -> tuple[list[Bits], EngineStats]:
    found, stats = answers(name)
    assert_acted(name, stats)
    return found, stats


def answers(name: str, *layout: str) -> tuple[list[Bits], EngineStats]:
    features = FEATURES[name]
    with LLM(*SMALL, *features.overrides, *layout) as llm:
        outputs = []
        for wave in features.waves:
            params = [asked(features, one, number) for number, one in enumerate(wave)]
            outputs += llm.generate([prompts()[one] for one in wave], params)
        return [bits_of(output) for output in outputs], llm.engine.stats()


def asked(features: Features, prompt: str, number: int) -> SamplingParams:
    params = settings(float(number % 2))[number % 2]
    if features.grammar and prompt == "json":
        return changed(params, grammar=JsonSchema(schema=SCHEMA), max_tokens=80, min_tokens=0)
    return params


def bits_of(output: RequestOutput) -> Bits:
    (answer,) = output.outputs
    assert output.error is None and answer.error is None
    return [tuple(answer.token_ids), answer.finish_reason, *(map(str, answer.logprobs or []))]


def assert_acted(name: str, stats: EngineStats, *, finds_prefixes: bool = True) -> None:
    overrides = FEATURES[name].overrides
    if DRAFTS[0] in overrides:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    if "cache=prefix" in overrides and finds_prefixes:
        assert stats.prefix is not None and stats.prefix.saved_tokens > 0
    if "scheduler.async_depth=1" in overrides:
        assert stats.steps_ahead > 0
