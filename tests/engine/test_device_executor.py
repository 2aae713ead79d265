"""The engine of an accelerator, its kernels played by torch on the CPU: tokens of the CPU's engine, whatever is switched on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from device_engines import blocks_plan, device_executor, device_graph, local_graph
from golden_engine import run
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_sampling import DeviceLane, HostLane
from deepinfer.engine.device_verifier import DeviceVerifier
from deepinfer.engine.sampling_graphs import SamplingGraphs
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepPlan
from deepinfer.ops.device import NAMES, DeviceOps, twins
from deepinfer.speculation.budget import ConfidenceBudget

WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal"}
DRAFTS = ("speculation=dspark_fixed", "speculation.back_off=false")
AHEAD = "scheduler.async_depth=1"
OPTIONS = {
    "plain": (),
    "ahead": (AHEAD,),
    "dspark": DRAFTS,
    "dspark ahead": (*DRAFTS, AHEAD),
    "some of the drafts": ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false", AHEAD),
    "ngram": ("speculation=ngram", "speculation.back_off=false", AHEAD),
    "ngram rejection": ("speculation=ngram", "speculation.back_off=false", "speculation.verify=rejection", AHEAD),
    "rejection": (*DRAFTS, "speculation.verify=rejection", AHEAD),
    "prefix": ("cache=prefix", "cache.snapshot_every=1", "cache.num_blocks=60", AHEAD),
    "prefix with drafts": ("cache=prefix", "cache.num_blocks=60", *DRAFTS, AHEAD),
    "chunks and preemption": ("cache.num_blocks=4", "scheduler.max_prefill_tokens=19", AHEAD),
    "preemption with drafts": ("cache.num_blocks=4", *DRAFTS, AHEAD),
    "compact": ("replay=compact", "replay.keep_tokens=40", AHEAD),
}


def prompts() -> list[np.ndarray]:
    """The last begins as the first does, for a whole block."""
    rng = np.random.default_rng(4)
    made = [rng.integers(3, 2000, length) for length in (140, 121, 3, 40)]
    return [*made, np.concatenate([made[0][:135], made[3][:5]])]


PARAMS = [
    SamplingParams(max_tokens=14, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=14, temperature=1.0, seed=3, ignore_eos=True, logprobs=2),
    SamplingParams(max_tokens=12, temperature=0.7, top_p=0.9, seed=4, ignore_eos=True, prompt_logprobs=0),
    SamplingParams(max_tokens=14, temperature=1.2, top_k=50, seed=5, ignore_eos=True, repetition_penalty=1.3),
    SamplingParams(max_tokens=14, temperature=1.0, seed=6, presence_penalty=0.5, min_tokens=9, logprobs=1),
]


UNEDITED = [replace(one, repetition_penalty=1.0, presence_penalty=0.0, min_tokens=0) for one in PARAMS]


def answers(graph: EngineGraph) -> list[dict]:
    """All but the last together, then the last: what it shares with the first is in the cache by then."""
    drawn = graph.plan.numerics.verify == "rejection" and graph.plan.drafting.kind != "ngram"
    params = UNEDITED if drawn else PARAMS  # edits are what drafts on a device do not know of
    if graph.plan.numerics.replay != "none":  # which has nothing to tell of most of a prompt
        params = [replace(one, prompt_logprobs=None) for one in params]
    return run(graph, prompts()[:-1], params[:-1]) + run(graph, prompts()[-1:], params[-1:])


@cache
def wanted(*overrides: str) -> list[dict]:
    return answers(local_graph(*overrides))


def assert_same(got: list[dict], reference: list[dict]) -> None:
    for one, two in zip(got, reference, strict=True):
        assert (one["tokens"], one["reason"]) == (two["tokens"], two["reason"])
        for kind in ("logprobs", "prompt"):
            assert [(ids, rank) for ids, _, rank in one[kind]] == [(ids, rank) for ids, _, rank in two[kind]]
            values = [
                np.concatenate([np.frombuffer(raw, np.float32) for _, raw, _ in x[kind]] or [[]]) for x in (one, two)
            ]
            np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_are_those_of_the_cpus_engine(name: str) -> None:
    options = OPTIONS[name]
    graph = device_graph(*options)
    bounded = tuple(o for o in options if o.startswith("replay"))
    drawn = options if "rejection" in name else bounded
    assert_same(answers(graph), wanted(*drawn))
    stats = graph.engine.stats()
    if AHEAD in options:
        assert stats.steps_ahead > stats.steps // 2
    if any("speculation" in option for option in options) and "ngram" not in name:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    if "cache=prefix" in options:
        assert stats.prefix is not None and stats.prefix.saved_tokens == 128
    if "cache.num_blocks=4" in options:
        assert stats.preemptions > 0
    assert (stats.blocks_used, stats.slots_used) == (0, 0)


def test_what_the_host_knows_of_sequences_is_what_the_device_knows() -> None:
    """After every step that was collected: tokens, lengths, drafts and their confidence of all that still run."""
    graph = device_graph("speculation=dspark", "speculation.cost_curve=none")
    engine, executor = graph.engine, device_executor(graph)
    for prompt, params in zip(prompts(), PARAMS):
        engine.submit(prompt, params)
    compared = 0
    while engine.has_work:
        engine.step()
        state, device = executor.state, executor.sequences
        for slot in engine.scheduler._decoding.tolist():
            known = int(state.num_tokens[slot])
            assert device.num_tokens_N[slot] == known and device.length_end_N[slot] == state.length_end[slot]
            ours, theirs = state.tokens_NL[slot, : state.pad + known], device.tokens_NL[slot, : state.pad + known]
            np.testing.assert_array_equal(ours, theirs.numpy())
            np.testing.assert_array_equal(state.drafts_NK[slot], device.drafts_NK[slot].numpy())
            if (state.drafts_NK[slot] >= 0).any():
                np.testing.assert_array_equal(state.confidence_NK[slot], device.confidence_NK[slot].numpy())
                compared += 1
    assert compared > 20


@pytest.mark.sample(1)
@pytest.mark.parametrize("drafts", [(), DRAFTS], ids=["plain", "drafts"])
def test_a_slot_taken_while_results_for_it_are_on_their_way_starts_afresh(drafts: tuple[str, ...]) -> None:
    """The request that was there is aborted between two steps, and the next one gets its place at once. Its own tokens are
    all that its penalties look at."""
    long = [
        SamplingParams(max_tokens=30, temperature=1.0, seed=s, ignore_eos=True, presence_penalty=2.0) for s in (1, 2, 3)
    ]
    alone = run(local_graph(), prompts()[1:3], long[1:])
    graph = device_graph(AHEAD, "scheduler.max_num_seqs=2", *drafts)
    engine = graph.engine
    first, second = (engine.submit(prompts()[p], long[i])[0] for p, i in ((3, 0), (1, 1)))
    got: dict[int, list[int]] = {second: []}

    def step() -> None:
        for event in engine.step():
            assert event.error is None
            got.setdefault(event.request_id, []).extend(event.token_ids)

    for _ in range(4):
        step()
    assert engine._flying is not None and got[first]
    (slot,) = [s for s, i in enumerate(engine.scheduler.table.request_id.tolist()) if i == first]
    engine.abort(first)
    third = engine.submit(prompts()[2], long[2])[0]
    step()
    assert engine.scheduler.table.request_id[slot] == third, "it has the place of the one that left"
    while engine.has_work:
        step()
    assert [got[second], got[third]] == [out["tokens"] for out in alone]
    assert engine.stats().dropped_results > 0


def test_calls_behind_a_sampled_step_take_effect_behind_its_results() -> None:
    """On the host as on the device: a slot's next sequence comes after the last one's token, however late that is heard of."""
    executor = device_executor(device_graph("scheduler.max_num_seqs=2"))
    zero = np.zeros(1, dtype=np.int64)
    asked = SamplingParams(max_tokens=5, temperature=0.0)
    prompt, next_prompt = np.array([5, 6, 7]), np.array([8, 9])
    executor.admit(0, Request(request_id=1, prompt_ids=prompt, params=asked, seed=0), 8)
    about = {"slots": zero, "num_decode": 0, "block_tables": np.zeros((1, 1), dtype=np.int64), "chunk_starts": zero}
    about |= {"chunk_rows": np.array([3]), "chunk_tokens": prompt, "chunk_sampled": np.ones(1, dtype=bool)}
    executor.submit(StepPlan(**about, window_from=zero, upper_from=zero, write_from=zero))
    executor.sample(SampleInput())
    executor.release(0)
    executor.admit(0, Request(request_id=2, prompt_ids=next_prompt, params=asked, seed=0), 7)
    assert executor.state.num_tokens[0] == 3, "the results are not heard of yet"
    assert len(executor.collect().token_ids) == 1
    for known in (executor.state.num_tokens[0], int(executor.sequences.num_tokens_N[0])):
        assert known == len(next_prompt)
    assert executor.sampler.params.prompts[0].tolist() == next_prompt.tolist()
    assert executor.state.length_end[0] == int(executor.sequences.length_end_N[0]) == 7


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [(AHEAD,), (*DRAFTS, AHEAD)], ids=["plain", "drafts"])
def test_a_nan_in_one_request_leaves_the_others_alone(options: tuple[str, ...]) -> None:
    graph, poisoned = device_graph(*options), 1999
    graph.model.embed_VD[poisoned] = float("nan")
    (bad,) = graph.engine.submit(np.array([0, 5, poisoned, 7]), SamplingParams(max_tokens=5))
    good = {graph.engine.submit(p, q)[0]: [] for p, q in zip(prompts()[2:4], PARAMS[2:4])}
    ends = {}
    while graph.engine.has_work:
        for event in graph.engine.step():
            good.get(event.request_id, []).extend(event.token_ids)
            if event.finish_reason:
                ends[event.request_id] = event
    assert ends[bad].finish_reason == "error" and not ends[bad].token_ids
    assert "no token for position 4: the logits of this position hold 2048 NaN" in ends[bad].error
    assert list(good.values()) == [out["tokens"] for out in wanted()[2:4]]


class Waiting(TorchDispatchMode):
    """Fails what would make the host of a device wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        assert func._schema.name not in WAITING, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def unwatched(ops: DeviceOps) -> DeviceOps:
    """What twins do inside is theirs: kernels stand in their place."""

    def aside(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return operation(*args, **kwargs)

        return call

    return DeviceOps(name=ops.name, **{name: aside(getattr(ops, name)) for name in NAMES})


def test_nothing_waits_inside_a_launch_region(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(blocks_plan(*DRAFTS, AHEAD), device_ops=unwatched(twins()))
    entered = []

    @contextmanager
    def guard() -> Iterator[None]:
        entered.append(1)
        with Waiting():
            yield

    monkeypatch.setattr(device_executor(graph), "_guard", guard)
    outs = run(graph, prompts()[2:4], PARAMS[2:4])
    assert [out["tokens"] for out in outs] == [out["tokens"] for out in wanted()[2:4]]
    assert len(entered) > graph.engine.stats().steps, "decode steps are launched, and all are sampled, under guard"
    with pytest.raises(AssertionError, match="waits for the device"), guard():
        torch.ones(1).item()


def test_tokens_chosen_in_memory_that_stays_are_the_same() -> None:
    """What a graph would hold, launched piece by piece; rows with penalties, behind drafts too, go the same way."""
    graph = device_graph(*DRAFTS, AHEAD)
    executor = device_executor(graph)
    lane = executor.sampling
    assert isinstance(lane, DeviceLane)
    about = lane.sampler, lane.logits, lane.sequences
    lane.graphs = SamplingGraphs(*about, verify_length=graph.limits.draft_depth, graphs=False)
    asked = [replace(one, repetition_penalty=1.0) for one in PARAMS[2:4]]
    assert [out["tokens"] for out in run(graph, prompts()[2:4], asked)] == [
        out["tokens"] for out in run(local_graph(), prompts()[2:4], asked)
    ]
    direct = lane.graphs.stats.direct
    assert direct > 4, "the decode lane's steps"
    assert_same(run(graph, prompts()[3:4], PARAMS[3:4]), wanted()[3:4])
    assert lane.graphs.stats.direct > direct, "the penalty's steps as well"


def test_a_step_that_ran_out_of_memory_half_way_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in pieces of other sizes is given back in between. Chunks, so that the step has keys and tails to write twice."""
    calls, failing = [], {3, 40, 90}

    def combine(*args: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) in failing:
            raise torch.OutOfMemoryError("none left")
        return twins().combine(*args)

    options = (
        "cache=prefix",
        "cache.snapshot_every=1",
        "cache.num_blocks=60",
        "scheduler.max_prefill_tokens=19",
        "scheduler.max_num_batched_tokens=80",
        *DRAFTS,
    )
    graph = build_graph(
        blocks_plan(*options), poison_freed=True, device_ops=dataclasses.replace(twins(), combine=combine)
    )
    calls.clear()
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    assert_same(answers(graph), wanted())
    assert len(emptied) == len(failing)


def test_who_waits_for_the_device_is_a_matter_of_the_plan() -> None:
    names = ("dspark", "rejection", "ngram", "ngram rejection")
    lanes = [device_executor(device_graph(*OPTIONS[name])).sampling for name in names]
    assert [type(lane) for lane in lanes] == [DeviceLane, DeviceLane, HostLane, HostLane]
    assert all(isinstance(lane.verifier, DeviceVerifier) for lane in lanes[2:]), "logits stay where they are"


def test_drafts_that_are_proposed_for_certain_are_judged_as_on_the_cpu() -> None:
    """Answers of three tokens, so that what stood before comes again and again."""
    kept = {"logit_bias": {token: 100.0 for token in (5, 9, 40)}, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    few = [replace(one, temperature=3.0 if one.temperature else 0.0, **kept) for one in PARAMS]
    graphs = [make(*OPTIONS["ngram rejection"]) for make in (device_graph, local_graph)]
    ours, theirs = (run(graph, prompts(), few) for graph in graphs)
    assert_same(ours, theirs)
    stats = graphs[0].engine.stats()
    assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)


def test_edited_answers_of_rejection_are_whole_and_obey_their_edits() -> None:
    """Their drafts know of no edits, so that texts differ from the CPU's; greedy ones and those without edits do not."""
    graph = device_graph(*OPTIONS["rejection"])
    params = [replace(one, bad_words=(), min_tokens=5, presence_penalty=0.7) for one in PARAMS[:4]]
    banned = [replace(one, logit_bias={token: -100.0 for token in range(0, 2000, 2)}) for one in params]
    made = run(graph, prompts()[:4], banned)
    assert all(len(one["tokens"]) == asked.max_tokens for one, asked in zip(made, banned))
    assert all(token % 2 or token >= 2000 for one in made for token in one["tokens"])
    assert made[0]["tokens"] == run(local_graph(), prompts()[:1], banned[:1])[0]["tokens"], "greedy"


def test_steps_are_timed_part_by_part() -> None:
    graph = device_graph(*DRAFTS)
    assert graph.engine.stats().model_s == 0, "the warm-up's steps are nobody's"
    run(graph, prompts()[2:3], PARAMS[2:3])
    stats = graph.engine.stats()
    assert stats.model_s > 0 and stats.sampling_s > 0 and stats.drafting_s > 0
    assert stats.model_s + stats.sampling_s + stats.drafting_s < stats.step_s


@pytest.mark.slow
def test_the_curve_of_step_times_is_measured_and_changes_no_token(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = device_graph("speculation=dspark", "speculation.back_off=false", "scheduler.max_num_seqs=2")
    assert_same(run(graph, prompts()[2:4], PARAMS[2:4]), wanted()[2:4])
    assert list(tmp_path.rglob("*.json"))
    lengths, executor = graph.engine.scheduler.lengths, device_executor(graph)
    assert isinstance(lengths, ConfidenceBudget) and lengths.curve is not None
    assert lengths.curve.padded and lengths.curve.rows.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 12]
    assert set(executor.row_sizes) <= set(lengths.curve.rows.tolist()) and executor.row_sizes[-1] == 12


def test_dummy_weights_run() -> None:
    graph = build_graph(blocks_plan("model.weights=dummy", *DRAFTS), device_ops=twins())
    (out,) = run(graph, prompts()[2:3], [SamplingParams(max_tokens=3, seed=1, ignore_eos=True)])
    assert len(out["tokens"]) == 3
