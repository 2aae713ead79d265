"""Reproducible: a request's tokens and log probabilities are those of running alone, whatever runs beside it and however.

Golden weights, prompts past window, selection and candidates. A mix draws options that are exact, and arrivals. Most run
with model.numerics=none: where activations are rounded to FP8, the last bit of a sum seldom shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from golden_engine import bits, golden_graph
from planted_drafters import KnownDrafts, plant
from planted_ops import FAULTS

from deepinfer.engine.build import EngineGraph
from deepinfer.engine.stats import EngineStats
from deepinfer.interfaces import SamplingParams
from deepinfer.structured import Choice, JsonSchema

BASE = ("sampling=reproducible", "grammar=llguidance", "cache.num_blocks=24")
PREEMPT = 0.06  # of the steps
SHARED = 131  # tokens: one block that the cache can keep
SCHEMA = {"type": "array", "items": {"enum": [1, 22, "abc"]}, "minItems": 2, "maxItems": 3}
Answer = tuple[
    list[int], list[tuple], list[tuple], str | None
]  # tokens, log probabilities, those of the prompt, reason


def requests() -> list[tuple[np.ndarray, SamplingParams]]:
    rng = np.random.default_rng(4)

    def prompt(length: int) -> np.ndarray:
        return np.concatenate([[0], rng.integers(3, 2000, length - 1)])

    shared = prompt(SHARED)
    prompts = [shared, np.concatenate([shared, prompt(9)]), shared, prompt(127), prompt(118), prompt(70), prompt(3)]
    more = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 1.0, "logprobs": 1, "logprobs_mode": "processed", "top_p": 0.9},
        {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "logprobs": 0},
        {"temperature": 0.7, "top_k": 40, "min_p": 0.001, "logprobs": 1, "frequency_penalty": 0.5},
        {"temperature": 0.0, "prompt_logprobs": 1, "logprobs": 0},
        {"temperature": 1.0, "grammar": JsonSchema(SCHEMA), "logprobs": 1},
        {"temperature": 1.0, "grammar": Choice(("yes or no", "yes and no")), "logprobs": 0},
    ]
    common = {"max_tokens": 12}
    return [
        (prompt, SamplingParams(**common, ignore_eos="grammar" not in one, seed=seed, **one))
        for seed, (prompt, one) in enumerate(zip(prompts, more, strict=True))
    ]


def drive(graph: EngineGraph, order: list[int], rng: np.random.Generator | None = None) -> dict[int, Answer]:
    """Submit requests in this order; request number → what came of it. With `rng`, steps lie between two arrivals, and
    now and then a running answer loses its place."""
    engine, all_requests = graph.engine, requests()
    numbers: dict[int, int] = {}
    got: dict[int, Answer] = {}

    def step() -> None:
        for event in engine.step():
            assert event.error is None, event.error
            tokens, logprobs, of_prompt, reason = got[numbers[event.request_id]]
            tokens += event.token_ids
            logprobs += [bits(entry) for entry in event.logprobs or []]
            of_prompt += [bits(entry) for entry in event.prompt_logprobs or []]
            got[numbers[event.request_id]] = (tokens, logprobs, of_prompt, event.finish_reason or reason)
        running = engine.scheduler._decoding
        if rng is not None and len(running) and rng.random() < PREEMPT:
            engine.scheduler.preempt(int(rng.choice(running)))

    for number in order:
        prompt, params = all_requests[number]
        (request_id,) = engine.submit(prompt, params)
        numbers[request_id], got[number] = number, ([], [], [], None)
        for _ in range(0 if rng is None else int(rng.integers(0, 9))):
            step()
    while engine.has_work:
        step()
    return got


@dataclass(frozen=True)
class Mix:
    """What is on. `known` are drafts of which most are right, in place of the option's own."""

    overrides: tuple[str, ...]
    known: bool
    seed: int
    numerics: str = "none"

    def run(self, wanted: dict[int, Answer]) -> tuple[dict[int, Answer], EngineStats]:
        rng = np.random.default_rng(self.seed)
        graph = golden_graph(*_once((*BASE, f"model.numerics={self.numerics}", *self.overrides)))
        if self.known:
            texts = [[*prompt.tolist(), *wanted[i][0]] for i, (prompt, _) in enumerate(requests()) if i in wanted]
            plant(graph, KnownDrafts(texts, graph.limits.draft_depth, graph.limits.vocab_size, seed=self.seed))
        order = rng.permutation(sorted(wanted)).tolist()
        got = drive(graph, order, rng)
        stats = graph.engine.stats()
        graph.engine.close()
        return got, stats


SPECULATION = {
    "none": (),
    "dspark": ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false"),
    "fixed": ("speculation=dspark_fixed", "speculation.verify_length=3", "speculation.back_off=false"),
    "ngram": ("speculation=ngram", "speculation.back_off=false"),
}
CACHES = ((), ("cache=prefix",), ("cache=prefix", "replay.on_hit=exact"))
CHUNKS = ((16, 24), (37, 53), (64, 80), (200, 300))
MIXES = 60


def mix(seed: int) -> Mix:
    rng = np.random.default_rng([11, seed])
    kind = ("dspark", "fixed", "ngram", "none")[seed % 4]
    prefill, batched = CHUNKS[rng.integers(4)]
    overrides = (
        *SPECULATION[kind],
        *CACHES[rng.integers(3)],
        f"scheduler.async_depth={rng.integers(2)}",
        f"scheduler.max_prefill_tokens={prefill}",
        f"scheduler.max_num_batched_tokens={max(batched, 8 * 6)}",
        f"cache.num_blocks={rng.choice([4, 6, 24])}",
    )
    known = kind != "none" and bool(rng.integers(3))
    return Mix(overrides, known, seed, numerics=("full", "none", "none")[seed % 3])


def _once(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The last override of each key: a key may be given once."""
    return tuple({override.partition("=")[0]: override for override in overrides}.values())


def one_by_one(which: list[int], numerics: str = "none") -> dict[int, Answer]:
    graph = golden_graph(*BASE, f"model.numerics={numerics}")
    got = {}
    for number in which:
        got |= drive(graph, [number])
    graph.engine.close()
    return got


@cache
def alone(numerics: str = "none") -> dict[int, Answer]:
    return one_by_one(list(range(len(requests()))), numerics)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(MIXES))
def test_any_mix_of_exact_features_gives_the_bits_of_lone_runs(seed: int) -> None:
    drawn = mix(seed)
    wanted = alone(drawn.numerics)
    got, stats = drawn.run(wanted)
    for number, answer in wanted.items():
        assert got[number] == answer, f"request {number} under {drawn}"
    if drawn.known:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)


def test_everything_at_once_acts() -> None:
    """Drafts accepted and rejected, steps ahead, chunks, hits, preemptions and grammars in one run."""
    overrides = (
        *SPECULATION["dspark"],
        "cache=prefix",
        "scheduler.async_depth=1",
        "scheduler.max_prefill_tokens=37",
        "scheduler.max_num_batched_tokens=60",
    )
    got, stats = Mix(overrides, known=True, seed=3).run(alone())
    assert got == alone()
    assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    assert stats.steps_ahead > 0 and stats.preemptions > 0 and stats.finished["stop"] > 0
    assert stats.prefix is not None and stats.prefix.saved_tokens > 0


FAULT_REQUESTS = [3]
FAULT_MIX = Mix(
    (*SPECULATION["fixed"], "scheduler.max_prefill_tokens=29", "scheduler.max_num_batched_tokens=48"),
    known=True,
    seed=5,
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_op_that_depends_on_its_batch_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and mixed differ once an op is planted that breaks it; the same mix is exact without one."""
    FAULTS[fault](monkeypatch)
    wanted = one_by_one(FAULT_REQUESTS)
    got, _ = FAULT_MIX.run(wanted)
    assert (got == wanted) == (fault == "none")
