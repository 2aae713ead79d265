"""Prefill and decode tokens/s of the engine, and of transformers' `deepseek_v4` of equal widths on the same device.

    python benchmarks/peer_transformers.py [--hardware h200] [--widths tiny wide] [--batches 1 8 64 256] [--record]

The peer runs as it is (eager) and with its parts of fixed shape as CUDA graphs (`--compile`). Decode steps of all sides take
turns in one run, and `_ratio` is the peer's seconds over ours; `_floor_ms` is the least that the chip's measured rates allow
ours. `tiny` has the shipped model's widths and depth, `wide` the release's widths, four layers and `--experts` experts. Answers
are greedy, prompts `--context` random tokens; nothing is drafted. The peer prefills eagerly in every case. Further words are
overrides of the engine's configuration.

V4 is not V4.1: lines carry `differences`. Decode steps of ours include scheduler (a step ahead) and sampler, and tokens reach
the host; the peer's are its forward pass and an argmax.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers_v4
from engine_loads import SteadyBatch, build, floors_ms, hardware, on_gpu, settle, where
from few_layers import write_config
from record import options, record

from deepinfer.config.facts import shipped_folder
from deepinfer.engine.build import EngineGraph

STEPS_PER_TURN = 8
WARM_STEPS = 12  # three groups of four tokens: the peer has compiled all it needs
PREFILLS = 2
EAGER, COMPILED = "transformers", "transformers_compiled"
Step = Callable[[], None]


class Side(Protocol):
    """A running batch. `prefill_s`: from its prompts until every one had a token."""

    prefill_s: float

    def step(self) -> None: ...

    def end(self) -> None: ...


Start = Callable[[np.ndarray], Side]  # prompts int64 [B, tokens] → the running batch


def in_turns(sides: Mapping[str, Step], rounds: int) -> dict[str, list[float]]:
    """Side → seconds of a step, the mean of each of its turns. A turn ends when the device has nothing left to do."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=number % 2 == 1):
            settle()
            started_s = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                sides[name]()
            settle()
            times[name].append((time.perf_counter() - started_s) / STEPS_PER_TURN)
    return times


def figures(
    batch: int, context: int, decode_s: Mapping[str, Sequence[float]], prefill_s: Mapping[str, float]
) -> dict[str, Any]:
    """Tokens/s of every side, by its median turn, and how many times the first side's speed is that of each other."""
    median = {name: float(np.median(times)) for name, times in decode_s.items()}
    found: dict[str, Any] = {}
    for what, seconds, tokens in (("decode", median, batch), ("prefill", prefill_s, batch * context)):
        ours = next(iter(seconds))
        found |= {f"{name}_{what}_tokens_per_s": round(tokens / value, 1) for name, value in seconds.items()}
        found |= {
            f"{name}_{what}_ratio": round(value / seconds[ours], 2) for name, value in seconds.items() if name != ours
        }
    found |= {f"{name}_step_ms": round(value * 1e3, 3) for name, value in median.items()}
    return found


def measure(starts: Mapping[str, Start], batch: int, asked: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Figures of one line: the fastest of some starts, and decode steps in turns, all sides on the same prompts."""
    running: dict[str, Any] = {}
    prefill_s: dict[str, float] = {}
    for name, start in starts.items():
        for seed in range(1 if name == COMPILED else PREFILLS, 0, -1):
            if name in running:
                running.pop(name).end()
            prompts = np.random.default_rng(seed).integers(0, vocab_size, (batch, asked.context))
            running[name] = start(prompts)
            prefill_s[name] = min(running[name].prefill_s, prefill_s.get(name, math.inf))
        for _ in range(WARM_STEPS):
            running[name].step()
    same = {"compiled_same_tokens": shared_tokens(running[EAGER], running[COMPILED])} if COMPILED in running else {}
    decode_s = in_turns({name: side.step for name, side in running.items()}, asked.rounds)
    for side in running.values():
        side.end()
    prefill_s.pop(COMPILED, None)  # it was eager
    return figures(batch, asked.context, decode_s, prefill_s) | same


def shared_tokens(one: transformers_v4.Peer, other: transformers_v4.Peer) -> float:
    """Share of answers whose newest token is the same."""
    return float(np.mean(np.equal(one.newest, other.newest)))


def engine(width: str, asked: argparse.Namespace) -> EngineGraph:
    rows = max(2048, *asked.batches)
    fixed = [f"hardware={asked.hardware}", f"scheduler.max_num_seqs={max(asked.batches)}", "scheduler.async_depth=1"]
    fixed += [f"scheduler.max_num_batched_tokens={rows}", f"scheduler.max_prefill_tokens={rows}"]
    if width == "tiny":
        return build(*fixed, "model=v41_tiny", *asked.overrides)
    with tempfile.TemporaryDirectory() as folder:
        path = write_config(Path(folder), shipped_folder("v41_flash"), asked.experts)
        return build(*fixed, f"model.path={path}", "model.weights=dummy", "model.max_model_len=4096", *asked.overrides)


def peers(graph: EngineGraph, asked: argparse.Namespace) -> dict[str, Start]:
    """Side → what starts it on prompts."""
    device, dtype = "cuda" if on_gpu(graph) else "cpu", getattr(torch, graph.plan.numerics.dtype)
    model = transformers_v4.build(graph.plan.model.config, device, dtype)
    found: dict[str, Start] = {EAGER: partial(transformers_v4.Peer, model, model.forward)}
    if asked.compile != "none":
        found[COMPILED] = partial(transformers_v4.Peer, model, transformers_v4.compiled(model, asked.compile))
    return found


def run(width: str, asked: argparse.Namespace, *, with_peer: bool) -> None:
    graph = engine(width, asked)
    starts: dict[str, Start] = {"deepinfer": partial(SteadyBatch, graph)}
    if with_peer:
        starts |= peers(graph, asked)
    for batch in asked.batches:
        record(
            Path(__file__).stem,
            width=width,
            batch=batch,
            context=asked.context,
            **measure(starts, batch, asked, graph.limits.vocab_size),
            **floors_ms(graph, batch, asked.context),
            overrides=asked.overrides,
            layers=graph.plan.model.config.num_hidden_layers,
            experts=graph.plan.model.config.n_routed_experts,
            dtype=graph.plan.numerics.dtype,
            numerics_digest=graph.plan.numerics_digest,
            compiled=asked.compile if with_peer else "none",
            differences=list(transformers_v4.DIFFERENCES) if with_peer else [],
            **where(graph),
        )
    graph.engine.close()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--hardware", help="h200 where there is a GPU, else cpu, of which lines are kept only if it is typed"
    )
    parser.add_argument("--widths", nargs="+", choices=("tiny", "wide"), default=["tiny"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--experts", type=int, default=48, help="of a wide layer")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--compile",
        choices=("graphs", "parts", "whole", "none"),
        default="graphs" if torch.cuda.is_available() else "none",
        help="graphs and parts need a GPU; whole takes minutes",
    )
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_intermixed_args()
    asked.hardware = hardware(asked.hardware, recorded=asked.record)
    notice = "" if asked.no_peer else transformers_v4.absent()
    if notice:
        print(f"ours alone: {notice}", file=sys.stderr)
    for width in asked.widths:
        run(width, asked, with_peer=not (asked.no_peer or notice))


if __name__ == "__main__":
    main()
