"""Random requests, ends and options: an accelerator's engine says what the CPU's plain engine says, token for token.

The accelerator's kernels are played by torch on the CPU. Every case draws one engine (speculation and its verification, depth,
prefix cache, replay, chunks and the sizes they are padded to, a cache too small for all, memory that runs out) and one crowd of
requests, of which some are aborted half-way, some stop, some fail. At the end nothing is held any more.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from device_engines import blocks_plan, device_executor
from engine_crowds import VOCABULARY, Answer, Asked, Drawn, crowd, drawn
from engine_driver import Driver, prepared, reference
from torch import Tensor

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.ops.device import DeviceOps, twins

CASES = 200
ALONE = "a step of one row, alone"  # of whom even that found no memory


def assert_same(got: Answer, wanted: Answer) -> None:
    if got.reason in ("abort", "stop string") or ALONE in (got.error or ""):
        assert got.tokens == wanted.tokens[: len(got.tokens)]
    else:
        assert (got.tokens, got.reason, got.error) == (wanted.tokens, wanted.reason, wanted.error)
        assert len(got.logprobs) == len(wanted.logprobs) and len(got.prompt) == len(wanted.prompt)
    for ours, theirs in zip(got.logprobs + got.prompt, wanted.logprobs[: len(got.logprobs)] + wanted.prompt):
        assert (ours.token_ids.tolist(), ours.rank) == (theirs.token_ids.tolist(), theirs.rank)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-6)


def assert_acted(graph: EngineGraph, what: Drawn) -> None:
    stats = graph.engine.stats()
    if what.ahead:
        assert stats.steps_ahead > 0
    if what.short:
        return
    assert stats.lost_steps == 0
    if what.drafter in ("fixed", "some") and what.planted and not what.rejection:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    if what.tight and not what.prefix and not what.planted and min(what.most_rows, what.most_batched) > 36:
        assert stats.preemptions > 0
    if what.prefix == "snapshot" and not what.tight:
        assert stats.prefix is not None and stats.prefix.saved_tokens > 0


def assert_nothing_is_held(graph: EngineGraph) -> None:
    engine, executor = graph.engine, device_executor(graph)
    scheduler, stats = engine.scheduler, engine.stats()
    assert (stats.blocks_used, stats.slots_used, scheduler.unfinished, len(scheduler.line)) == (0, 0, 0, 0)
    assert scheduler.blocks.num_free == scheduler.blocks.size and scheduler.slots.num_free == scheduler.slots.size
    assert not scheduler.rows._troubles and not engine._prompt_progress._delivered and not engine.grammars
    if (prefix := scheduler.prefix) is not None:
        pool = prefix.cache.snapshots
        assert not pool._pins.any() and pool.num_unused + pool.num_kept == pool.size == pool.num_unused + len(
            pool._idle
        )
        assert not prefix.news and not prefix._restores and not prefix.cache._sequences
    assert not (executor._entering or executor._log or executor._prompt_wanted)
    assert executor._submitted is executor._sampled is executor._output is None
    sequences = executor.sequences
    padding = sequences.padding_slot
    assert (sequences.num_tokens_N[padding], sequences.length_end_N[padding]) == (1, 2)
    assert (sequences.drafts_NK[padding] == -1).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(CASES))
def test_a_crowd_is_answered_as_on_the_cpu(number: int, sample_seed: int) -> None:
    rng = np.random.default_rng([sample_seed, number])
    what = drawn(rng)
    requests = crowd(rng, what)
    wanted = reference(requests, what)
    driver = prepared(what, requests, wanted, rng)
    driver.all_of(rng)
    for one, two in zip(requests, wanted, strict=True):
        for got, expected in zip(one.answers, two.answers, strict=True):
            assert_same(got, expected)
    assert_acted(driver.graph, what)
    assert_nothing_is_held(driver.graph)
    driver.engine.close()


def test_a_long_chunk_that_ran_out_of_memory_is_run_again_from_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window keys that its first rows see were overwritten by its last ones; and what the first run made is given back."""
    calls, held, failing = [], [], []

    def combine(out: Tensor, *args: Any) -> Tensor:
        calls.append(1)
        if failing[-1:] == [True] and len(calls) in {20, 39, 57}:  # late layers of the second chunk and of later ones
            held.append(weakref.ref(out))
            raise torch.OutOfMemoryError("none left")
        return twins().combine(out, *args)

    def emptied() -> None:
        assert held[-1]() is None, "what the first run made is still held"

    def said(ops: DeviceOps) -> list[tuple]:
        graph = build_graph(blocks_plan(*options), poison_freed=True, device_ops=ops)
        calls.clear()
        failing.append(ops is not plain)
        params = SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=0)
        driver = Driver(graph, [Asked(np.random.default_rng(0).integers(3, VOCABULARY - 1, 150), params)])
        driver.all_of(np.random.default_rng(0))
        (answer,) = driver.heard.values()
        return [(one.token_ids.tolist(), one.logprobs.tolist()) for one in answer.prompt] + answer.tokens

    rows = ("scheduler.max_num_batched_tokens=37", "scheduler.max_prefill_tokens=37")
    options = ("scheduler.max_num_seqs=3", "model.max_model_len=256", *rows)
    plain = twins()
    wanted = said(plain)
    monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    assert said(dataclasses.replace(twins(), combine=combine)) == wanted
    assert len(held) == 3
