"""The features that must change no token, each with what shows that it acted; and one workload that gives all of them work.

The tiny trained model, texts of its own families, past every cut of the architecture: more than 640 tokens are beyond the
window (128), the selection (128 entries) and the candidates (512 entries), so that nothing is attended to as a whole. All
prompts end the same number of tokens before a block does, so that all answers need a block at about the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

import numpy as np
from msgspec.structs import replace as changed
from tokenizers import Tokenizer

from deepinfer.config.compose import load
from deepinfer.config.facts import probe, shipped_folder
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.stats import EngineStats
from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.plan.resolve import resolve
from deepinfer.structured import JsonSchema
from examples.tiny_model.data.chat import BOS
from examples.tiny_model.data.mixture import evaluation_documents

LONG_TOKENS = 640
BLOCK = 128
BEFORE_BLOCK = 22  # tokens from the end of every prompt to that of its block: more than admission looks ahead
ANSWER_TOKENS = 28
PREEMPT_EVERY, PREEMPTIONS = 5, 4  # steps, and times in all
SMALL = ("hardware=cpu", "model.max_model_len=1536", "scheduler.max_num_seqs=6", "model.threads=1")
DRAFTED = ("speculation.back_off=false",)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "words": {"type": "array", "items": {"enum": ["red", "green", "blue", "grey"]}, "minItems": 8, "maxItems": 8},
    },
    "required": ["name", "words"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Feature:
    """`acted` looks at what a run left; `base` are overrides that the run without the feature has as well."""

    overrides: tuple[str, ...]
    acted: Callable[[Ran], bool]
    base: tuple[str, ...] = ()
    grammar: bool = False  # the requests bring one, with the feature and without
    preempts: bool = False  # now and then the newest running answer loses its place


def accepted_and_rejected(ran: Ran) -> bool:
    return 0 < sum(ran.stats.accepted_at) < sum(ran.stats.checked_at)


def saved(ran: Ran) -> bool:
    return ran.stats.prefix is not None and ran.stats.prefix.saved_tokens > 0


FEATURES = {
    "dspark": Feature(("speculation=dspark", "speculation.cost_curve=none", *DRAFTED), accepted_and_rejected),
    "fixed": Feature(("speculation=dspark_fixed", "speculation.verify_length=3", *DRAFTED), accepted_and_rejected),
    "ngram": Feature(("speculation=ngram", *DRAFTED), accepted_and_rejected),
    "ahead": Feature(
        ("scheduler.async_depth=1",),
        lambda ran: ran.stats.steps_ahead > ran.stats.steps // 2,
        ("scheduler.async_depth=0",),
    ),
    "snapshot": Feature(("cache=prefix",), saved),
    "replayed": Feature(("cache=prefix", "replay.on_hit=exact"), saved),
    "chunks": Feature(
        ("scheduler.max_prefill_tokens=50", "scheduler.max_num_batched_tokens=70"),
        lambda ran: ran.prompt_steps > LONG_TOKENS // 70,
    ),
    "preemption": Feature(
        (), lambda ran: ran.stats.preemptions > 2 and ran.stats.recomputed_tokens > 2 * BLOCK, preempts=True
    ),
    "grammar": Feature(
        ("grammar=llguidance",), lambda ran: ran.stats.finished["stop"] > 0, ("grammar=llguidance",), True
    ),
    "compact": Feature(
        ("replay=compact",),
        lambda ran: ran.graph.plan.numerics.replay == "compact",
        ("replay=mask",),
    ),
    "reference": Feature(
        ("kernels=reference",), lambda ran: {choice.backend for choice in ran.graph.plan.ops} == {"reference"}
    ),
    "reproducible": Feature(("sampling=reproducible",), lambda ran: ran.graph.plan.numerics.reproducible),
}
EXCLUSIVE = ({"dspark", "fixed", "ngram"}, {"snapshot", "replayed"})  # options of one group
LOSSY = {"compact", "reproducible"}  # bounded replay is refused with reproducible, by name


@dataclass(frozen=True)
class Answer:
    """What came of one request, log probabilities as raw bits."""

    tokens: list[int]
    reason: str | None
    logprobs: list[tuple]


@dataclass(frozen=True)
class Ran:
    """A run: what came of it, and what shows which features acted."""

    answers: list[Answer]
    stats: EngineStats
    graph: EngineGraph
    prompt_steps: int  # steps with rows of prompts


@cache
def prompts() -> dict[str, list[int]]:
    """Token ids by name, in order of submission. `other` begins as `long` does, for more than 640 tokens."""
    tokenizer = Tokenizer.from_file(str(shipped_folder("v41_tiny") / "tokenizer.json"))
    families = evaluation_documents(2, 7, False)

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    filler = [i for document in families["recall_1200"] for i in encoded(document.prompt)[1:]]

    def filled(ids: list[int], blocks: int) -> list[int]:
        """BOS and `ids` behind so much of the filler that they end where they should."""
        return ids[:1] + filler[: blocks * BLOCK - BEFORE_BLOCK - len(ids)] + ids[1:]

    question, sum_ = encoded(families["recall_80"][0].prompt), encoded(families["arithmetic"][0].prompt)
    story = encoded(f"{BOS}<｜User｜>Tell me a short story about a fox.<｜Assistant｜></think>")
    return {
        "long": filled(question, 8),
        "json": filled(encoded(families["json_schema"][1].prompt), 3),
        "other": filled(sum_, 8),
        "story": filled(story, 1),
        "tool": filled(encoded(families["tool_call"][1].prompt), 5),
    }


def settings(temperature: float) -> list[SamplingParams]:
    """Greedy, or T = 1 with top-p and every penalty; log probabilities in both modes."""
    drawn = {
        "temperature": temperature,
        "top_p": 0.9 if temperature else 1.0,
        "repetition_penalty": 1.05,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "max_tokens": ANSWER_TOKENS,
        "min_tokens": BEFORE_BLOCK + 2,
        "logprobs": 1,
    }
    return [SamplingParams(**drawn, seed=seed, logprobs_mode=mode) for seed, mode in ((3, "raw"), (4, "processed"))]


def run(overrides: tuple[str, ...], temperature: float, *, grammar: bool, preempts: bool = False) -> Ran:
    """Two waves, the second while the first still answers; what it shares with it is then in the cache."""
    spec = load(*_once((*SMALL, *overrides)))
    graph = build_graph(resolve(spec, probe(spec)), poison_freed=True)
    engine = graph.engine
    raw, processed = settings(temperature)
    if grammar:
        limits = {"max_tokens": 80, "min_tokens": 0}
        raw, processed = (changed(p, grammar=JsonSchema(schema=SCHEMA), **limits) for p in (raw, processed))
    waves = [("long", "json"), ("other", "story", "tool")]
    got: dict[int, Answer] = {}
    prompt_rows = []  # so far, after each step

    def step() -> None:
        _hear(engine.step(), got)
        prompt_rows.append(engine.stats().prefill_rows)

    for wave in waves:
        for number, name in enumerate(wave):
            (request_id,) = engine.submit(np.array(prompts()[name]), (raw, processed)[number % 2])
            got[request_id] = Answer([], None, [])
        while engine.has_work and not all(answer.tokens for answer in got.values()):
            step()
    for steps in count(1):
        if not engine.has_work:
            break
        step()
        running = engine.scheduler._decoding
        if preempts and steps % PREEMPT_EVERY == 0 and len(running) and engine.stats().preemptions < PREEMPTIONS:
            engine.scheduler.preempt(int(running[-1]))
    stats = engine.stats()
    engine.close()
    return Ran(list(got.values()), stats, graph, len(set(prompt_rows) - {0}))


def _hear(events: list, got: dict[int, Answer]) -> None:
    for event in events:
        assert event.error is None, event.error
        answer = got[event.request_id]
        answer.tokens.extend(event.token_ids)
        answer.logprobs.extend(bits(entry) for entry in event.logprobs or [])
        got[event.request_id] = replace(answer, reason=event.finish_reason or answer.reason)


def bits(entry: TokenLogprobs) -> tuple:
    return entry.token_ids.tolist(), entry.logprobs.tobytes(), entry.rank


def _once(overrides: tuple[str, ...]) -> list[str]:
    """The last override of each key: a key may be given once."""
    return list({override.partition("=")[0]: override for override in overrides}.values())
