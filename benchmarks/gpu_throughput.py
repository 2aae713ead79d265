"""Tokens/s of the tiny model on a GPU at B = 1, 8, 64, 256, with each feature of the engine on and off.

    python benchmarks/gpu_throughput.py [--hardware h200] [--batches 1 8 64 256] [--features cache=prefix …] [--record]

B held-out prompts of the tiny model's tasks come at once, and time runs until every answer has ended, prompts included; tokens
are those of the answers. Every side, a configuration under a load, runs once a round, and the first round is not timed, since
engines compile and capture in it. `ratio` is the median over rounds of tokens/s with the feature over those without.
`equal_answers`: share of answers that are the same, token for token, on both sides; a feature that keeps its promise has 1, and
`promise` says which do not make it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from engine_loads import Served, build, hardware, serve, where
from record import options, record
from tiny_prompts import prompts

from deepinfer.engine.build import EngineGraph
from deepinfer.interfaces import SamplingParams
from deepinfer.structured import JsonObject

Params = tuple[tuple[str, Any], ...]
GREEDY: Params = (("temperature", 0.0), ("max_tokens", 64))
DRAWN: Params = (("temperature", 1.0), ("seed", 11), ("max_tokens", 64))
FAMILIES = {"stories": "prose", "recall": "recall", "long prompts": "long recall", "json": "plain json"}
SHARED_TOKENS = 512  # of the beginning that all prompts share
LAUNCHES = "launches one by one"  # no override: the engine is built without CUDA graphs


@dataclass(frozen=True)
class Side:
    """A configuration, a step ahead unless it says otherwise, and what it is asked."""

    overrides: tuple[str, ...] = ()
    load: str = "stories"
    params: Params = GREEDY


@dataclass(frozen=True)
class Feature:
    on: Side
    off: Side
    promise: str = "same tokens"


def switched(*overrides: str, load: str = "stories", params: Params = GREEDY, promise: str = "same tokens") -> Feature:
    """What overrides add to the plain engine under the same load."""
    return Feature(Side(overrides, load, params), Side((), load, params), promise)


FIXED = ("speculation=dspark_fixed", "speculation.back_off=false")
COUPLED = Side(FIXED, params=DRAWN)
LOSSY, LONG = "none: lossy", "long prompts"
FEATURES = {
    "asynchronous scheduling": Feature(Side(), Side(("scheduler.async_depth=0",))),
    "CUDA graphs": Feature(Side(), Side((LAUNCHES,))),
    "speculation=dspark": switched("speculation=dspark"),
    "speculation=dspark_fixed": switched(*FIXED),
    "speculation=ngram": switched("speculation=ngram", "speculation.back_off=false", load="recall"),
    "sampling=reproducible": Feature(Side((*FIXED, "sampling=reproducible"), params=DRAWN), COUPLED),
    "speculation.verify=rejection": Feature(
        Side((*FIXED, "speculation.verify=rejection"), params=DRAWN), COUPLED, "none: rejection draws other tokens"
    ),
    "cache=prefix": switched("cache=prefix", "cache.memory_bytes=4GiB", load="shared beginning"),  # not the whole GPU
    "replay=mask": switched("replay=mask", load=LONG, promise=LOSSY),
    "replay=compact": switched("replay=compact", load=LONG, promise=LOSSY),
    "replay=compact, not mask": Feature(Side(("replay=compact",), LONG), Side(("replay=mask",), LONG)),
    "prompts in chunks of 256": switched(
        "scheduler.max_num_batched_tokens=256", "scheduler.max_prefill_tokens=256", load=LONG
    ),
    "structured output": Feature(
        Side(load="json", params=(*GREEDY, ("grammar", JsonObject()))),
        Side(load="json"),
        "none: fewer tokens are allowed",
    ),
}


def texts(load: str, count: int) -> list[np.ndarray]:
    """`count` prompts; where the tasks have fewer, from the first again."""
    if load == "shared beginning":
        beginning = np.concatenate(prompts("mixed", 40))[:SHARED_TOKENS]
        own = [np.concatenate([beginning, one]) for one in prompts("mixed", 64)]
    else:
        own = prompts(FAMILIES[load], 64)
    return [own[i % len(own)] for i in range(count)]


def compare(rounds: Sequence[tuple[Served, Served]]) -> dict[str, Any]:
    """Figures of rounds of (on, off)."""
    on, off = (list(one) for one in zip(*rounds, strict=True))
    pairs = [pair for a, b in rounds for pair in zip(a.answers, b.answers, strict=True)]
    found = {
        "on_tokens_per_s": round(float(np.median([one.tokens_per_s for one in on])), 1),
        "off_tokens_per_s": round(float(np.median([one.tokens_per_s for one in off])), 1),
        "ratio": round(float(np.median([a.tokens_per_s / b.tokens_per_s for a, b in rounds])), 3),
        "equal_answers": round(sum(a == b for a, b in pairs) / len(pairs), 4),
    }
    lengths = {"on": on[-1].accepted_length, "off": off[-1].accepted_length}
    return found | {f"{name}_accepted_length": round(value, 3) for name, value in lengths.items() if value}


def turn(side: Side, batch: int, engine: Callable[..., EngineGraph]) -> Served:
    started_s = time.perf_counter()
    graph = engine(*side.overrides)
    built_s = time.perf_counter() - started_s
    served = serve(graph.engine, texts(side.load, batch), SamplingParams(**dict(side.params)))
    told = f"B = {batch} {' '.join(side.overrides) or 'plain'}, {side.load}: {served.seconds:.2f} s"
    print(told + (f", built in {built_s:.2f} s" if built_s > 0.01 else ""), file=sys.stderr, flush=True)
    return served


def measure(names: Sequence[str], batch: int, asked: argparse.Namespace, engine: Callable[..., EngineGraph]) -> None:
    """All features at one number of users."""
    features = {name: FEATURES[name] for name in names}
    sides = list(dict.fromkeys(side for one in features.values() for side in (one.on, one.off)))
    served: dict[Side, list[Served]] = {side: [] for side in sides}
    for number in range(1 + asked.rounds):
        for side in sides[:: -1 if number % 2 else 1]:
            served[side].append(turn(side, batch, engine))
    for name, feature in features.items():
        record(
            Path(__file__).stem,
            feature=name,
            batch=batch,
            load=feature.on.load,
            **compare(list(zip(served[feature.on][1:], served[feature.off][1:], strict=True))),
            promise=feature.promise,
            on=list(feature.on.overrides),
            off=list(feature.off.overrides),
            rounds=asked.rounds,
            overrides=asked.overrides,
            **where(engine(*feature.on.overrides)),
        )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--hardware", help="h200 where there is a GPU, else cpu, of which lines are kept only if it is typed"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_intermixed_args()
    asked.hardware = hardware(asked.hardware, recorded=asked.record)
    plain = [f"hardware={asked.hardware}", "model=v41_tiny", f"scheduler.max_num_seqs={max(asked.batches)}"]
    plain += ["scheduler.async_depth=1", "scheduler.max_num_batched_tokens=2048", "scheduler.max_prefill_tokens=2048"]

    @cache
    def engine(*chosen: str) -> EngineGraph:
        own = [word for word in chosen if word != LAUNCHES]
        return build(*settled([*plain, *own, *asked.overrides]), graphs=LAUNCHES not in chosen)

    for batch in asked.batches:
        measure(asked.features, batch, asked, engine)


def settled(words: Sequence[str]) -> list[str]:
    """Of a key that is set more than once, the last value."""
    return [f"{key}={value}" for key, value in dict(word.split("=", 1) for word in words).items()]


if __name__ == "__main__":
    main()
