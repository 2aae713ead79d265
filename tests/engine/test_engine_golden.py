"""The engine on the golden model: exact greedy answers, and the same bits however requests are scheduled."""

import json

import numpy as np
import pytest
from golden_engine import GOLDEN, golden_graph, run, small_plan

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams

PROMPTS = [np.array(ids) for ids in json.loads((GOLDEN / "tiny_a" / "prompts.json").read_text())["prompts"]]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("numerics", "dtype"), [("full", "float64"), ("kv", "float64"), ("none", "float32")])
def test_greedy_answers_are_the_golden_ones(numerics: str, dtype: str) -> None:
    golden = np.load(GOLDEN / "golden_a.npz")
    graph = golden_graph(f"model.numerics={numerics}", f"model.dtype={dtype}", "scheduler.max_prefill_tokens=16")
    names = [i for i in range(len(PROMPTS)) if f"chk_f64/{numerics}/{i}/greedy" in golden.files]
    params = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True, logprobs=0)
    outs = run(graph, [PROMPTS[i] for i in names], [params] * len(names))
    for name, out in zip(names, outs):
        assert out["tokens"] == golden[f"chk_f64/{numerics}/{name}/greedy"].tolist()
        logprobs = np.array([np.frombuffer(raw, np.float32)[0] for _, raw, _ in out["logprobs"]])
        np.testing.assert_allclose(
            logprobs, golden[f"chk_f64/{numerics}/{name}/greedy_logprob"], atol=1e-4 if dtype == "float32" else 4e-6
        )
    assert len(names) >= 5 and graph.engine.stats().blocks_used == 0


def long_prompts() -> list[np.ndarray]:
    """Longer than window, top-k and candidates together (64), around a block border, and a very short one."""
    rng = np.random.default_rng(4)
    return [np.concatenate([[0], rng.integers(3, 2000, length)]) for length in (120, 126, 127, 70, 3)]


PARAMS = [
    SamplingParams(max_tokens=14, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=14, temperature=1.0, seed=3, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=14, temperature=0.7, top_p=0.9, seed=4, ignore_eos=True, prompt_logprobs=0),
    SamplingParams(max_tokens=14, temperature=1.2, top_k=50, seed=5, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(max_tokens=14, temperature=1.0, seed=6, ignore_eos=True, presence_penalty=0.5, logprobs=1),
]


@pytest.mark.slow
def test_the_tiny_model_with_prompts_that_cut_window_top_k_and_candidates() -> None:
    """Prompts of more than 640 tokens on the shipped architecture: alone = batched = chunked = preempted."""
    tiny = ["model=v41_tiny", "model.weights=dummy", "model.max_model_len=1024"]
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, 3500, length) for length in (766, 650, 5)]
    params = [SamplingParams(max_tokens=6, temperature=0.8, seed=s, ignore_eos=True, logprobs=1) for s in range(3)]
    graph = build_graph(small_plan(*tiny), poison_freed=True)
    alone = [run(graph, [prompt], [one])[0] for prompt, one in zip(prompts, params)]
    assert run(graph, prompts, params) == alone
    chunked = build_graph(
        small_plan(
            *tiny, "cache.num_blocks=12", "scheduler.max_num_batched_tokens=77", "scheduler.max_prefill_tokens=77"
        ),
        poison_freed=True,
    )
    assert run(chunked, prompts, params) == alone
    assert chunked.engine.stats().preemptions > 0


@pytest.fixture(scope="module")
def alone() -> tuple[EngineGraph, list[dict]]:
    """Every prompt by itself, in one chunk."""
    graph = golden_graph()
    return graph, [run(graph, [prompt], [params])[0] for prompt, params in zip(long_prompts(), PARAMS)]


def test_a_batch_gives_the_bits_of_lone_runs(alone: tuple[EngineGraph, list[dict]]) -> None:
    graph, wanted = alone
    assert run(graph, long_prompts(), PARAMS) == wanted
    assert run(graph, long_prompts()[::-1], PARAMS[::-1]) == wanted[::-1], "another order, other slots and blocks"


def test_ragged_chunks_and_preemption_give_the_bits_of_lone_runs(alone: tuple[EngineGraph, list[dict]]) -> None:
    graph = golden_graph("cache.num_blocks=4", "scheduler.max_prefill_tokens=37", "scheduler.max_num_batched_tokens=53")
    assert run(graph, long_prompts(), PARAMS) == alone[1]
    stats = graph.engine.stats()
    assert stats.preemptions > 0 and stats.recomputed_tokens > 0
    assert stats.host_s > 0 and stats.sampling_s > 0 and stats.model_s > stats.host_s, "the step's time, in three parts"
    assert stats.model_s + stats.sampling_s + stats.host_s == pytest.approx(stats.step_s)
    assert (stats.blocks_used, stats.slots_used) == (0, 0)


def test_a_nan_in_one_request_leaves_the_others_alone(alone: tuple[EngineGraph, list[dict]]) -> None:
    graph, wanted = alone
    poisoned = 1999
    before = graph.model.embed_VD[poisoned].clone()
    graph.model.embed_VD[poisoned] = float("nan")
    try:
        bad = np.array([0, 5, poisoned, 7])
        (bad_id,) = graph.engine.submit(bad, SamplingParams(max_tokens=5))
        good = {graph.engine.submit(p, q)[0]: [] for p, q in zip(long_prompts()[3:], PARAMS[3:])}
        ends = {}
        while graph.engine.has_work:
            for event in graph.engine.step():
                good.get(event.request_id, []).extend(event.token_ids)
                if event.finish_reason:
                    ends[event.request_id] = event
        assert ends[bad_id].finish_reason == "error" and not ends[bad_id].token_ids
        assert "no token for position 4: the logits of this position hold 2048 NaN" in ends[bad_id].error
        assert list(good.values()) == [out["tokens"] for out in wanted[3:]]
    finally:
        graph.model.embed_VD[poisoned] = before
    assert run(graph, [long_prompts()[4]], [PARAMS[4]]) == wanted[4:], "and nothing of it is left in the caches"


def test_engines_of_one_process_take_turns_with_their_own_thread_counts(alone: tuple[EngineGraph, list[dict]]) -> None:
    one, wanted = alone
    two = golden_graph("model.threads=2")
    prompt, params = long_prompts()[4], PARAMS[4]
    for graph in (one, two):
        graph.engine.submit(prompt, params)
    tokens: dict[int, list[int]] = {0: [], 1: []}
    while one.engine.has_work or two.engine.has_work:
        for which, graph in enumerate((one, two)):
            for event in graph.engine.step():
                tokens[which] += event.token_ids
    assert tokens[0] == tokens[1] == wanted[4]["tokens"]
    two.engine.close()
    assert run(one, [long_prompts()[4]], [PARAMS[4]]) == wanted[4:]
