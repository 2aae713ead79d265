"""Tokens/s of decoding on this CPU at B = 1, 8, 32, and of transformers' deepseek_v4 of the same width and depth beside it.

    python benchmarks/throughput.py [--context 256] [--threads 1] [--no-peer] [model.weights=dummy …]

Both decode greedily from random prompts of `--context` tokens; steps of the two alternate in short rounds, so that a busy
machine slows both alike. V4 is not V4.1: the peer has no engram memory, no ratio-1 layers and no quantised caches. Its
weights are random; ours are those of the configuration. `host_share` is all of a step that is neither the model nor the
sampler, `outside_model_share` all that is not the model.
"""

import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
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
    engine, rng = graph.engine, np.random.default_rng(batch)
    params = SamplingParams(max_tokens=graph.limits.max_model_len, temperature=0.0, ignore_eos=True)
    ids = [engine.submit(rng.integers(0, graph.limits.vocab_size, context), params)[0] for _ in range(batch)]
    while engine.stats().decoding < batch:
        engine.step()

    def end() -> None:
        for request_id in ids:
            engine.finish(request_id)

    def step() -> None:
        assert len(engine.step()) == batch

    return step, end


def start_peer(graph: EngineGraph, batch: int, context: int) -> Step:
    """transformers' DeepseekV4ForCausalLM with our sizes: one decode step of a running batch, by hand, without `generate`."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    c = graph.plan.model.config
    layers = ["compressed_sparse_attention" if ratio else "sliding_attention" for ratio in c.compress_ratios]
    same = (
        "vocab_size hidden_size moe_intermediate_size num_hidden_layers num_attention_heads head_dim q_lora_rank o_groups "
        "o_lora_rank num_experts_per_tok n_routed_experts sliding_window index_n_heads index_head_dim index_topk hc_mult "
        "hc_sinkhorn_iters qk_rope_head_dim max_position_embeddings"
    ).split()
    torch.manual_seed(0)
    config = DeepseekV4Config(
        **{name: getattr(c, name) for name in same},
        layer_types=layers[: c.num_hidden_layers],
        mlp_layer_types=["moe"] * c.num_hidden_layers,
        pad_token_id=c.pad_token_id,
    )
    model = DeepseekV4ForCausalLM(config).eval()
    ids = torch.from_numpy(np.random.default_rng(batch).integers(0, c.vocab_size, (batch, context)))
    with torch.inference_mode():
        out = model(input_ids=ids, use_cache=True)
    state = {"cache": out.past_key_values, "ids": out.logits[:, -1:].argmax(-1)}

    @torch.inference_mode()
    def step() -> None:
        out = model(input_ids=state["ids"], past_key_values=state["cache"], use_cache=True)
        state["ids"] = out.logits[:, -1:].argmax(-1)

    return step


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
    if not asked.no_peer and find_spec("transformers") is None:
        sys.exit("the peer needs transformers: pip install -e '.[bench]', or type --no-peer")
    graph = build(asked.threads, asked.overrides)
    for batch in BATCHES:
        measure(graph, batch, asked.context, asked.rounds, peer=not asked.no_peer)


if __name__ == "__main__":
    main()
