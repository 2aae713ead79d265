"""Tokens/s of the tiny model on a GPU at B = 1, 8, 64, 256, with each feature of the engine on and off.

    python benchmarks/gpu_throughput.py [--hardware h200] [--batches 1 8 64 256] [--features cache=prefix …] [--record]

B held-out prompts of the tiny model's tasks come at once, and time runs until every answer has ended, prompts included; tokens
are those of the answers. The first turn of a size is not timed, since the engine compiles and captures in it. A feature's two
engines take turns with the same prompts and seeds; `ratio` is the median over rounds of tokens/s with the feature over those
without. `equal_answers`: share of answers that are the same, token for token, on both sides; a feature that keeps its promise
has 1, and `promise` says which do not make it.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_loads import Served, build, serve, where
from record import options, record
from tiny_prompts import prompts

from deepinfer.engine.build import EngineGraph
from deepinfer.interfaces import SamplingParams
from deepinfer.structured import JsonObject

ASYNC, GREEDY = "scheduler.async_depth=1", {"temperature": 0.0, "max_tokens": 64}
DRAWN = {"temperature": 1.0, "seed": 11, "max_tokens": 64}
NEVER_BACK_OFF = "speculation.back_off=false"
SHARED_TOKENS = 512  # of the beginning that all prompts share


@dataclass(frozen=True)
class Feature:
    """Overrides with it and without it; `with_params` are added to the request's where it is on."""

    on: tuple[str, ...]
    off: tuple[str, ...] = (ASYNC,)
    load: str = "stories"
    params: tuple[tuple[str, Any], ...] = tuple(GREEDY.items())
    with_params: tuple[tuple[str, Any], ...] = ()
    promise: str = "same tokens"


FEATURES = {
    "asynchronous scheduling": Feature((ASYNC,), ("scheduler.async_depth=0",)),
    "speculation=ngram": Feature((ASYNC, "speculation=ngram", NEVER_BACK_OFF)),
    "speculation=dspark_fixed": Feature((ASYNC, "speculation=dspark_fixed", NEVER_BACK_OFF)),
    "speculation=dspark": Feature((ASYNC, "speculation=dspark")),
    "cache=prefix": Feature((ASYNC, "cache=prefix"), load="shared beginning"),
    "replay=compact": Feature((ASYNC, "replay=compact"), load="long prompts", promise="none: lossy"),
    "structured output": Feature(
        (ASYNC,), load="json", with_params=(("grammar", JsonObject()),), promise="none: fewer tokens are allowed"
    ),
    "reproducible": Feature(
        (ASYNC, "speculation=dspark_fixed", NEVER_BACK_OFF, "sampling=reproducible"),
        (ASYNC, "speculation=dspark_fixed", NEVER_BACK_OFF, "speculation.verify=rejection"),
        params=tuple(DRAWN.items()),
        promise="none: rejection draws other tokens",
    ),
}


def texts(load: str, count: int) -> list[np.ndarray]:
    """`count` prompts; where the tasks have fewer, from the first again."""
    if load == "shared beginning":
        beginning = np.concatenate(prompts("mixed", 40))[:SHARED_TOKENS]
        own = [np.concatenate([beginning, one]) for one in prompts("mixed", 64)]
    else:
        own = prompts({"stories": "prose", "long prompts": "long recall", "json": "plain json"}[load], 64)
    return [own[i % len(own)] for i in range(count)]


def turn(feature: Feature, on: EngineGraph, off: EngineGraph, batch: int) -> tuple[Served, Served]:
    """The same prompts with the feature, then without."""
    load, params = texts(feature.load, batch), dict(feature.params)
    with_it = SamplingParams(**params | dict(feature.with_params))
    return serve(on.engine, load, with_it), serve(off.engine, load, SamplingParams(**params))


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


def measure(name: str, batch: int, asked: argparse.Namespace, engine: Callable[..., EngineGraph]) -> None:
    feature = FEATURES[name]
    on, off = engine(*feature.on), engine(*feature.off)
    turn(feature, on, off, batch)
    rounds = [turn(feature, on, off, batch) for _ in range(asked.rounds)]
    record(
        Path(__file__).stem,
        feature=name,
        batch=batch,
        load=feature.load,
        **compare(rounds),
        promise=feature.promise,
        on=list(feature.on),
        off=list(feature.off),
        rounds=asked.rounds,
        overrides=asked.overrides,
        **where(on),
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--hardware", default="h200" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_intermixed_args()
    sizes = [f"scheduler.max_num_seqs={max(asked.batches)}", "scheduler.max_prefill_tokens=2048"]

    @cache
    def engine(*chosen: str) -> EngineGraph:
        return build(f"hardware={asked.hardware}", "model=v41_tiny", *sizes, *chosen, *asked.overrides)

    for name in asked.features:
        for batch in asked.batches:
            measure(name, batch, asked, engine)


if __name__ == "__main__":
    main()
