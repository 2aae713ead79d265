"""The trained tiny model on a GPU through the engine: its own tokens in any company, the CPU's where no rounding decides."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from golden_engine import run
from tokenizers import Tokenizer

from deepinfer.config.compose import load
from deepinfer.config.facts import probe, shipped_folder
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_clock import LaunchGuard
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve

pytestmark = pytest.mark.gpu

TINY = ("model=v41_tiny", "model.max_model_len=1024", "scheduler.max_num_seqs=16")
ON_GPU = (*TINY, "hardware=h200", "cache.memory_bytes=512MiB")
IN_TURN = "scheduler.async_depth=0"
DRAFTS = ("speculation=dspark", "speculation.back_off=false", "speculation.cost_curve=none")
MARGIN = 2.0  # between two logits: those farther apart keep their order in bfloat16 (tests/model/likely_tokens.py)
TEXTS = (
    "<｜begin▁of▁sentence｜><｜User｜>What is 347 + 285?<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>Sort this list: 42, 7, 19, 3, 88<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>Tell me a short story about a fox.<｜Assistant｜></think>",
    "<｜begin▁of▁sentence｜><｜User｜>Make a JSON object: name Emma, age 31, city Oslo<｜Assistant｜></think>",
)


def graph_of(*overrides: str) -> EngineGraph:
    spec = load(*overrides)
    return build_graph(resolve(spec, probe(spec)), poison_freed=True)


@cache
def plain() -> EngineGraph:
    return graph_of(*ON_GPU, IN_TURN)


def requests(count: int, temperature: float) -> tuple[list[np.ndarray], list[SamplingParams]]:
    """Texts of the model's own families and random tokens in turn."""
    tokenizer, rng = Tokenizer.from_file(str(shipped_folder("v41_tiny") / "tokenizer.json")), np.random.default_rng(9)
    prompts = []
    for number in range(count):
        ids = tokenizer.encode(TEXTS[number % len(TEXTS)], add_special_tokens=False).ids
        noise = rng.integers(3, 3000, int(rng.integers(1, 200))).tolist()
        prompts.append(np.array(ids if number % 2 else noise + ids))
    params = [
        SamplingParams(max_tokens=24, temperature=temperature, seed=s, ignore_eos=True, logprobs=1)
        for s in range(count)
    ]
    return prompts, params


def executor_of(graph: EngineGraph) -> DeviceExecutor:
    executor = getattr(graph.executor, "inner", graph.executor)
    assert isinstance(executor, DeviceExecutor)
    return executor


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_of_sixteen_gives_the_bits_of_lone_runs(temperature: float) -> None:
    prompts, params = requests(16, temperature)
    together = run(plain(), prompts, params)
    for number in (0, 1, 7, 15):
        assert run(plain(), prompts[number : number + 1], params[number : number + 1]) == together[number : number + 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [(), (*DRAFTS, IN_TURN), DRAFTS, ("sampling=reproducible",)],
    ids=["ahead", "drafts", "drafts ahead", "reproducible"],
)
def test_options_give_the_bits_of_the_plain_engine(options: tuple[str, ...], temperature: float) -> None:
    prompts, params = requests(16, temperature)
    graph = graph_of(*ON_GPU, *options)
    assert run(graph, prompts, params) == run(plain(), prompts, params)
    stats = graph.engine.stats()
    if DRAFTS[0] in options:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    assert (stats.steps_ahead > stats.steps // 2) == (IN_TURN not in options), "a GPU works ahead unless told not to"
    assert executor_of(graph).lanes.decode.stats.replays > stats.steps // 2, "decode steps are graphs"


@pytest.mark.parametrize("async_depth", [0, 1])
def test_rejection_gives_greedy_tokens_and_complete_answers(async_depth: int) -> None:
    greedy, drawn = requests(6, 0.0), requests(6, 1.0)
    graph = graph_of(*ON_GPU, *DRAFTS, "speculation.verify=rejection", f"scheduler.async_depth={async_depth}")
    wanted = [out["tokens"] for out in run(plain(), *greedy)]
    assert [out["tokens"] for out in run(graph, *greedy)] == wanted
    assert {len(out["tokens"]) for out in run(graph, *drawn)} == {24}
    assert 0 < sum(graph.engine.stats().accepted_at) < sum(graph.engine.stats().checked_at)


def test_tokens_are_the_cpus_wherever_the_best_two_are_far_apart() -> None:
    prompts, params = requests(12, 0.0)
    cpu = graph_of(*TINY, "hardware=cpu")
    same = 0
    for ours, theirs in zip(run(plain(), prompts, params), run(cpu, prompts, params), strict=True):
        pairs = list(zip(ours["tokens"], theirs["tokens"], theirs["logprobs"], strict=True))
        differ = next((at for at, (one, two, _) in enumerate(pairs) if one != two), None)
        same += len(pairs) if differ is None else differ
        if differ is not None:
            best, second = np.frombuffer(pairs[differ][2][1], np.float32)[:2]
            assert best - second < MARGIN, f"token {differ}: {best - second:.2f} between the CPU's best two"
    assert same > 12 * 24 // 2


def test_the_torch_twins_run_there_too() -> None:
    prompts, params = requests(3, 0.0)
    graph = graph_of(*ON_GPU, "kernels=reference")
    outs = run(graph, prompts, params)
    assert all(len(out["tokens"]) == 24 for out in outs)
    assert not executor_of(graph).lanes.decode.num_graphs


def test_a_guard_fails_what_waits_inside_a_launch_region() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"), LaunchGuard(x.device)():
        x.sum().item()
    assert x.sum().item() == 3, "and outside of it nothing is forbidden"


def test_the_caches_have_the_planned_bytes() -> None:
    graph = plain()
    memory = graph.plan.memory[0]
    assert graph.cache.nbytes == sum(memory.item(name).num_bytes for name in ("kv_pool", "state"))
    assert graph.cache.blocks.is_cuda


def test_step_times_are_measured_there(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few = ("hardware=h200", "model=v41_tiny", "model.max_model_len=512", "scheduler.max_num_seqs=4")
    graph = graph_of(*few, "speculation=dspark", "speculation.back_off=false")
    curve = graph.engine.scheduler.lengths.curve
    assert 1e-5 < float(curve.predict(1, 1, drafted=False)) < 1e-1


@pytest.mark.parametrize("options", [(), DRAFTS], ids=["plain", "drafts"])
def test_a_conversation_on_cached_prefixes_gives_the_bits_of_whole_runs(options: tuple[str, ...]) -> None:
    """Answers cross the ends of blocks; the second turn goes on from their states. No step is launched piece by piece."""
    graph = graph_of(*ON_GPU, *options, "cache=prefix", "cache.snapshot_bytes=64MiB", "scheduler.async_depth=1")
    executor, params = executor_of(graph), requests(8, 1.0)[1]
    steps = (executor.lanes.decode.stats, executor.lanes.chunks.stats)
    before = sum(stats.replays for stats in steps), graph.engine.stats().steps
    prompts = [np.random.default_rng(seed).integers(3, 3000, 107 + 3 * seed) for seed in range(8)]
    for _ in range(2):
        found = run(graph, prompts, params)
        assert found == run(plain(), prompts, params)
        prompts = [np.concatenate([text, out["tokens"], [9]]) for text, out in zip(prompts, found)]
    stats = graph.engine.stats()
    assert stats.prefix is not None and stats.prefix.saved_tokens == len(prompts) * 128
    replays = sum(lane.replays for lane in steps) - before[0]
    assert replays == stats.steps - before[1] and executor.lanes.chunks.num_graphs


@pytest.mark.parametrize("count", [1, 16])
def test_the_first_requests_wait_for_no_capture(count: int) -> None:
    graph = graph_of(*ON_GPU)
    executor = executor_of(graph)
    parts = executor.lanes.chunks, executor.lanes.decode, executor.sampling.graphs
    before = [part.stats.captures for part in parts]
    asked = [SamplingParams(max_tokens=6, temperature=1.0, seed=s, ignore_eos=True) for s in range(count)]
    outs = run(graph, requests(count, 1.0)[0], asked)
    assert [len(out["tokens"]) for out in outs] == [6] * count
    assert before == [part.stats.captures for part in parts] and all(part.stats.replays > 0 for part in parts)
