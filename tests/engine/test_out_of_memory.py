"""Out of memory at any launch of a device's engine: nobody's answer changes, and a request that never fits is refused alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from device_engines import blocks_plan, device_executor
from golden_engine import run
from msgspec.structs import replace

from deepinfer.config.errors import ExitCode, Refused
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device import StepOutOfMemory
from deepinfer.engine.device_memory import if_memory_suffices, within_memory
from deepinfer.engine.step_loss import RowLimit
from deepinfer.interfaces import SamplingParams
from deepinfer.model.fused.memory_errors import is_out_of_memory
from deepinfer.ops.device import NAMES, DeviceOps, twins

AHEAD = "scheduler.async_depth=1"
DRAFTS = ("speculation=dspark_fixed", "speculation.back_off=false")
OPTIONS = {
    "plain": (),
    "ahead": (AHEAD,),
    "drafts": DRAFTS,
    "drafts ahead": (*DRAFTS, AHEAD),
    "rejection": (*DRAFTS, "speculation.verify=rejection", AHEAD),
    "prefix": ("cache=prefix", "cache.snapshot_every=1", "cache.num_blocks=60", AHEAD),
}
SMALL = ("scheduler.max_num_seqs=4", "scheduler.max_num_batched_tokens=64", "scheduler.max_prefill_tokens=64")
AT_LOAD = ("prepare_fp8_weight", "prepare_experts_up", "prepare_experts", "prepare_hyper_site", "markov_work")
BANNED = 2001  # a token of one request's prompt
PARAMS = [
    SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=9, temperature=1.0, seed=3, ignore_eos=True, logprobs=1, presence_penalty=0.5),
    SamplingParams(max_tokens=5, temperature=0.7, seed=4, ignore_eos=True, top_p=0.9),
]


class ShortMemory:
    """Operations that find no memory: `times` of them in turn from launch number `at` on, or all that `refuses` says."""

    def __init__(self) -> None:
        self.at, self.times, self.count = -1, 0, 0
        self.refuses: Callable[[str, tuple[Any, ...]], bool] = lambda name, args: False

    def arm(self, at: int, times: int) -> None:
        self.at, self.times, self.count = at, times, 0

    def ops(self) -> DeviceOps:
        ops = twins()
        return dataclasses.replace(ops, **{n: self._short(n, getattr(ops, n)) for n in NAMES if n not in AT_LOAD})

    def _short(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if 0 <= self.at <= self.count and self.times > 0:
                self.times -= 1
                raise torch.OutOfMemoryError(f"planted in {name}")
            if self.refuses(name, args):
                raise torch.OutOfMemoryError(f"planted in {name}")
            return operation(*args, **kwargs)

        return ask


def params(name: str) -> list[SamplingParams]:
    """Rejection keeps the law and not the text, which depends on the drafts that are checked: greedy tokens are the same."""
    return [replace(one, temperature=0.0) for one in PARAMS] if name == "rejection" else PARAMS


def prompts() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    made = [rng.integers(3, 2000, length) for length in (150, 40, 3)]
    made[1][:20] = made[0][:20]
    return made


@cache
def built(name: str) -> tuple[EngineGraph, ShortMemory]:
    short = ShortMemory()
    return build_graph(blocks_plan(*OPTIONS[name], *SMALL), poison_freed=True, device_ops=short.ops()), short


def rested(name: str) -> tuple[EngineGraph, ShortMemory]:
    """The same engine, which has forgotten what other tests did to it."""
    graph, short = built(name)
    graph.engine.scheduler.rows = RowLimit(graph.limits.max_num_batched_tokens)
    return graph, short


@cache
def undisturbed(name: str) -> tuple[list[dict], int]:
    """Answers, and how many launches they took."""
    graph, short = built(name)
    short.arm(-1, 0)
    return run(graph, prompts(), params(name)), short.count


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("part", range(4))
def test_answers_are_those_of_an_undisturbed_run(name: str, times: int, part: int, sample_seed: int) -> None:
    reference, count = undisturbed(name)
    graph, short = rested(name)
    rng = np.random.default_rng([sample_seed, part, times])
    short.arm(int(rng.integers(part * count // 4, (part + 1) * count // 4)), times)
    assert run(graph, prompts(), params(name)) == reference, f"launch {short.at} of {count}"
    assert short.times == 0
    assert graph.engine.stats().slots_used == graph.engine.stats().blocks_used == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "costs_steps"), [("decode_rows", True), ("append_tokens", True), ("markov_step", False)]
)
def test_a_failed_pass_or_choice_costs_a_step_and_a_failed_draft_costs_drafts(name: str, costs_steps: bool) -> None:
    graph, short = rested("drafts ahead")
    short.arm(-1, 0)
    few = [prompt[:8] for prompt in prompts()]
    wanted, before, asked = run(graph, few, PARAMS), graph.engine.stats().lost_steps, []

    def refuses(op: str, args: tuple[Any, ...]) -> bool:
        asked.extend([op] if op == name else [])
        return op == name and len(asked) in (2, 3)

    short.refuses = refuses
    try:
        assert run(graph, few, PARAMS) == wanted
    finally:
        short.refuses = lambda name, args: False
    assert len(asked) > 3
    assert (graph.engine.stats().lost_steps > before) == costs_steps


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["plain", "ahead", "rejection"])
def test_a_request_that_never_fits_is_refused_and_its_neighbours_are_served(name: str) -> None:
    reference, _ = undisturbed(name)
    graph, short = rested(name)
    assert not any(BANNED in one["tokens"] for one in reference)

    def refuses(op: str, args: tuple[Any, ...]) -> bool:
        return op == "ngram_rows" and bool((args[0] == BANNED).any())

    engine = graph.engine
    short.refuses = refuses
    (banned,) = engine.submit(np.array([BANNED, 5, 6, 7, 8]), SamplingParams(max_tokens=4, seed=1))
    ids = [engine.submit(prompt, one)[0] for prompt, one in zip(prompts(), params(name))]
    tokens: dict[int, list[int]] = {i: [] for i in (banned, *ids)}
    errors: dict[int, str] = {}
    while engine.has_work:
        for event in engine.step():
            tokens[event.request_id] += event.token_ids
            if event.error:
                errors[event.request_id] = event.error
    short.refuses = lambda name, args: False
    assert list(errors) == [banned] and "type: cache.num_blocks=" in errors[banned]
    assert [tokens[i] for i in ids] == [one["tokens"] for one in reference]
    assert run(graph, prompts(), params(name)) == reference, "the engine is as it was"


def test_no_memory_for_the_first_steps_is_told_before_there_are_requests() -> None:
    short = ShortMemory()
    short.refuses = lambda name, args: name == "ngram_rows"
    with pytest.raises(Refused) as refused:
        build_graph(blocks_plan(*SMALL), device_ops=short.ops())
    (problem,) = refused.value.problems
    assert problem.code == ExitCode.MEMORY and problem.fix.startswith("cache.num_blocks=")


def test_a_prompt_that_does_not_reach_the_device_reaches_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = undisturbed("ahead")
    graph, _ = rested("ahead")
    sequences, failed = device_executor(graph).sequences, []
    admit = sequences.admit

    def short(slot: int, *rest: Any) -> None:
        if len(failed) < 4:
            failed.append(slot)
            raise torch.OutOfMemoryError("planted")
        admit(slot, *rest)

    monkeypatch.setattr(sequences, "admit", short)
    assert run(graph, prompts(), PARAMS) == reference
    assert len(failed) == 4


def test_other_errors_pass_and_memory_errors_are_known_in_any_dress() -> None:
    cpu = torch.device("cpu")

    def broken() -> None:
        raise RuntimeError("shapes differ")

    def capture() -> None:
        try:
            raise torch.OutOfMemoryError("no memory")
        except RuntimeError as fault:
            raise RuntimeError("a step cannot be captured") from fault

    with pytest.raises(RuntimeError, match="shapes differ"):
        within_memory(broken, cpu)
    with pytest.raises(StepOutOfMemory, match="ran out"):
        within_memory(capture, cpu)
    assert if_memory_suffices(capture, cpu) is None and if_memory_suffices(lambda: 3, cpu) == 3
    for text in ("CUDA error: out of memory", "the CUDA driver answered CUDA_ERROR_OUT_OF_MEMORY"):
        assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(AssertionError("out of memory of another kind"))
