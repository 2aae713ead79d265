"""Tokens/s of the real engine on a CPU with steps scheduled ahead and without: the device is a thread of the same process.

    python benchmarks/async_engine.py [--batches 8 32] [--steps 48] [--rounds 3] [--record]

Both sides run the same prose of the shipped tiny model, greedily, with one thread for the device; whole runs alternate, since a
step in flight would disturb the other side. `device_ms` is the device's own work in each step (model, sampler, drafter),
`host_ms` that of the loop that did not hide behind it: at depth 1 the difference to depth 0 was overlapped. `device_slower`
says what the host's thread costs the device: both are Python, so they share one interpreter lock, and caches. Times are of
the fastest round; `ratio` is the median over rounds of tokens/s at depth 1 over those of depth 0 beside it. `cpu_ms` is the
process's processor time a step, which other processes do not add to: what it grows by is the price of two threads. On this
device the host's part is small beside the model's, so there is little to win; what a fast device wins: async_overlap.py.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from record import options, record
from tiny_prompts import prompts

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve


def build(depth: int, speculation: str) -> EngineGraph:
    chosen = [f"speculation={speculation}"] + ["speculation.back_off=false"] * (speculation != "none")
    fixed = ["hardware=cpu", "model=v41_tiny", "model.threads=1", "scheduler.max_num_seqs=32"]
    spec = load(*fixed, f"scheduler.async_depth={depth}", *chosen)
    return build_graph(resolve(spec, probe(spec)))


def run(graph: EngineGraph, batch: int, steps: int) -> dict[str, float]:
    """Per step of `steps` with all answers running: seconds of the wall, of the device and of the host, and tokens."""
    engine = graph.engine
    params = SamplingParams(max_tokens=graph.limits.max_model_len - 64, temperature=0.0, ignore_eos=True)
    ids = [engine.submit(prompt, params)[0] for prompt in prompts("prose", batch)]
    while (stats := engine.stats()).waiting or stats.prefilling:
        engine.step()
    for _ in range(2):  # at depth 1 the last prompts are still in flight
        engine.step()
    before, started_s, started_cpu_s = engine.stats(), time.perf_counter(), time.process_time()
    for _ in range(steps):
        engine.step()
    wall_s, cpu_s, after = time.perf_counter() - started_s, time.process_time() - started_cpu_s, engine.stats()
    for request_id in ids:
        engine.finish(request_id)
    while engine.has_work:
        engine.step()
    spent = {name: getattr(after, name) - getattr(before, name) for name in ("model_s", "sampling_s", "drafting_s")}
    device_s, tokens = sum(spent.values()), after.sampled_tokens - before.sampled_tokens
    return {
        "step_s": wall_s / steps,
        "cpu_s": cpu_s / steps,
        "device_s": device_s / steps,
        "tokens_per_s": tokens / wall_s,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculation", nargs="+", default=["none", "dspark_fixed"], help="none, dspark_fixed, …")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for speculation in asked.speculation:
            graphs = [build(depth, speculation) for depth in (0, 1)]
            for batch in asked.batches:
                rounds = [[run(graph, batch, asked.steps) for graph in graphs] for _ in range(asked.rounds)]
                line(rounds, batch=batch, speculation=speculation, steps=asked.steps)
            for graph in graphs:
                graph.engine.close()


def line(rounds: list[list[dict[str, float]]], **keys: object) -> None:
    """One measurement: [rounds][depth]."""
    best = [min(side, key=lambda one: one["step_s"]) for side in zip(*rounds)]
    host_ms = [(one["step_s"] - one["device_s"]) * 1e3 for one in best]
    record(
        Path(__file__).stem,
        **keys,
        ratio=round(float(np.median([one[1]["tokens_per_s"] / one[0]["tokens_per_s"] for one in rounds])), 3),
        **{f"tokens_per_s_depth_{depth}": round(one["tokens_per_s"], 1) for depth, one in enumerate(best)},
        **{f"step_ms_depth_{depth}": round(one["step_s"] * 1e3, 2) for depth, one in enumerate(best)},
        **{f"cpu_ms_depth_{depth}": round(min(one[depth]["cpu_s"] for one in rounds) * 1e3, 2) for depth in (0, 1)},
        **{f"device_ms_depth_{depth}": round(one["device_s"] * 1e3, 2) for depth, one in enumerate(best)},
        **{f"host_ms_depth_{depth}": round(ms, 3) for depth, ms in enumerate(host_ms)},
        device_slower=round(best[1]["device_s"] / best[0]["device_s"] - 1, 3),
        load=[round(value, 1) for value in os.getloadavg()],
    )


if __name__ == "__main__":
    main()
