"""Steps with chunks in padded sizes in the engine of an accelerator: tokens of the CPU's engine, whatever is switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from device_engines import blocks_plan, device_executor, device_graph
from golden_engine import run
from test_device_executor import (
    AHEAD,
    DRAFTS,
    OPTIONS,
    PARAMS,
    Waiting,
    answers,
    assert_same,
    prompts,
    unwatched,
    wanted,
)

from deepinfer.engine import device_assembly
from deepinfer.engine.build import build_graph
from deepinfer.ops.device import twins

SIZES = [32, 160]  # the longest prompt fits one step alone, not beside others


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", ["ahead", "dspark ahead", "prefix", "prefix with drafts", "chunks and preemption", "compact"]
)
def test_tokens_are_those_of_the_cpus_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_assembly, "chunk_rows", lambda loaded: SIZES)
    graph = device_graph(*OPTIONS[name])
    bounded = tuple(option for option in OPTIONS[name] if option.startswith("replay"))
    assert_same(answers(graph), wanted(*bounded))
    chunks = device_executor(graph).lanes.chunks
    assert chunks is not None and chunks.stats.direct > (name != "compact"), "of whose prompts most rows stay behind"


def test_nothing_waits_inside_a_launch_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_assembly, "chunk_rows", lambda loaded: SIZES)
    graph = build_graph(blocks_plan(*DRAFTS, AHEAD), device_ops=unwatched(twins()))
    executor, entered = device_executor(graph), []

    @contextmanager
    def guard() -> Iterator[None]:
        entered.append(1)
        with Waiting():
            yield

    monkeypatch.setattr(executor, "_guard", guard)
    outs = run(graph, prompts()[2:4], PARAMS[2:4])
    assert [out["tokens"] for out in outs] == [out["tokens"] for out in wanted()[2:4]]
    steps = graph.engine.stats().steps
    assert len(entered) == 2 * steps, "all steps are launched, and sampled, under guard"


def test_a_step_that_fits_no_size_is_launched_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both prompts come in one step."""
    monkeypatch.setattr(device_assembly, "chunk_rows", lambda loaded: [8])
    graph = device_graph()
    chunks = device_executor(graph).lanes.chunks
    assert chunks is not None
    warm = chunks.stats.direct
    assert_same(run(graph, prompts()[2:4], PARAMS[2:4]), wanted()[2:4])
    assert chunks.stats.direct == warm > 0
