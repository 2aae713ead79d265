"""Tokens/s of decoding on this CPU at B = 1, 8, 32, and of transformers' deepseek_v4 of the same width and depth beside it.

    python benchmarks/throughput.py [--context 256] [--threads 1] [--no-peer] [model.weights=dummy …]

Both decode greedily from the same random prompts of `--context` tokens; steps of the two alternate in short rounds, so that a
busy machine slows both alike. V4 is not V4.1: `transformers_v4.py` says in what the peer differs. Its weights are random; ours
are those of the configuration. `host_share` is all of a step that is neither the model nor the sampler, `outside_model_share`
all that is not the model.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers_v4
from record import options, record

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve

BATCHES = (1, 8, 32)
STEPS_PER_ROUND = 4
Step = Callable[[], None]


def build(threads: int, overrides: list[str]) -> EngineGraph:
    fixed = ["hardware=cpu", "model=v41_tiny", f"model.threads={threads}", f"scheduler.max_num_seqs={max(BATCHES)}"]
    spec = load(*fixed, *overrides)
    return build_graph(resolve(spec, probe(spec)))


def start_engine(graph: EngineGraph, batch: int, context: int) -> tuple[Step, Callable[[], None]]:
    """A running batch: its step, and what ends it."""
    engine = graph.engine
    params = SamplingParams(max_tokens=graph.limits.max_model_len, temperature=0.0, ignore_eos=True)
    ids = [engine.submit(prompt, params)[0] for prompt in random_prompts(graph, batch, context)]
    while engine.stats().decoding < batch:
        engine.step()

    def end() -> None:
        for request_id in ids:
            engine.finish(request_id)

    def step() -> None:
        assert len(engine.step()) == batch

    return step, end


def start_peer(graph: EngineGraph, batch: int, context: int) -> Step:
    """A decode step of a running batch of transformers' model with our sizes, in float32."""
    config = graph.plan.model.config
    model = transformers_v4.build(config, "cpu", torch.float32)
    return transformers_v4.Peer(model, model.forward, random_prompts(graph, batch, context)).step


def random_prompts(graph: EngineGraph, batch: int, context: int) -> np.ndarray:
    """int64 [batch, context]; of a batch always the same."""
    return np.random.default_rng(batch).integers(0, graph.limits.vocab_size, (batch, context))


def alternate(sides: dict[str, Step], rounds: int) -> dict[str, np.ndarray]:
    """Side → seconds of every step, after one round of warming up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, step in sides.items():
            for _ in range(STEPS_PER_ROUND):
                started = time.perf_counter()
                step()
                if number:
                    times[name].append(time.perf_counter() - started)
    return {name: np.array(values) for name, values in times.items()}


def measure(graph: EngineGraph, batch: int, context: int, rounds: int, *, peer: bool) -> None:
    step, end = start_engine(graph, batch, context)
    sides = {"deepinfer": step} | ({"transformers": start_peer(graph, batch, context)} if peer else {})
    before = graph.engine.stats()
    times = alternate(sides, rounds)
    after = graph.engine.stats()
    end()
    spent = {name: getattr(after, name) - getattr(before, name) for name in ("step_s", "model_s", "host_s")}
    median = {name: float(np.median(values)) for name, values in times.items()}
    values = {f"{name}_tokens_per_s": round(batch / seconds, 1) for name, seconds in median.items()}
    values |= {f"{name}_step_ms": round(seconds * 1e3, 2) for name, seconds in median.items()}
    values |= {f"{name}_best_step_ms": round(float(times[name].min()) * 1e3, 2) for name in times}
    record(
        Path(__file__).stem,
        batch=batch,
        context=context,
        **values,
        speedup=round(median["transformers"] / median["deepinfer"], 3) if peer else None,
        host_share=round(spent["host_s"] / spent["step_s"], 4),
        outside_model_share=round(1 - spent["model_s"] / spent["step_s"], 4),
        numerics=graph.plan.numerics.numerics,
        dtype=graph.plan.numerics.dtype,
        threads=graph.plan.numerics.threads,
        ops=sorted({choice.backend for choice in graph.plan.ops}),
        numerics_digest=graph.plan.numerics_digest,
        steps=rounds * STEPS_PER_ROUND,
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    if not asked.no_peer and (why := transformers_v4.absent()):
        sys.exit(f"{why}, or --no-peer")
    graph = build(asked.threads, asked.overrides)
    for batch in BATCHES:
        measure(graph, batch, asked.context, asked.rounds, peer=not asked.no_peer)


if __name__ == "__main__":
    main()
