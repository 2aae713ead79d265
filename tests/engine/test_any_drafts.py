"""Coupled verification: whatever is drafted, at any verify length, the tokens are those of no drafts at all."""

import numpy as np
import pytest
from golden_engine import bits, golden_graph
from planted_drafters import GarbageDrafts, KnownDrafts, ShuffledDrafts, local_executor, plant
from toy_executor import SomeDrafts

from deepinfer.engine.build import EngineGraph
from deepinfer.interfaces import SamplingParams

ON = ("speculation=dspark_fixed", "speculation.back_off=false")
ECHO = [40, 41, 42, 43, 44, 45, 46, 47]


def requests() -> list[tuple[np.ndarray, SamplingParams]]:
    rng = np.random.default_rng(8)
    prompts = [np.array([0, *ECHO * 6]), rng.integers(3, 2000, 70), rng.integers(3, 2000, 9)]
    params = [
        SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True, logprobs=1),
        SamplingParams(max_tokens=18, temperature=1.0, seed=3, top_p=0.9, presence_penalty=0.5, logprobs=0),
        SamplingParams(max_tokens=17, temperature=0.0, frequency_penalty=0.7, min_tokens=9, logprobs=0),
    ]
    return list(zip(prompts, params, strict=True))


def answers(graph: EngineGraph) -> list[tuple]:
    engine = graph.engine
    got = {engine.submit(prompt, params)[0]: ([], []) for prompt, params in requests()}
    while engine.has_work:
        for event in engine.step():
            assert event.error is None
            got[event.request_id][0].extend(event.token_ids)
            got[event.request_id][1].extend(bits(entry) for entry in event.logprobs or [])
    return list(got.values())


@pytest.fixture(scope="module")
def off() -> list[tuple]:
    return answers(golden_graph())


def known(graph: EngineGraph, off: list[tuple], right: float) -> KnownDrafts:
    texts = [[*prompt.tolist(), *tokens] for (prompt, _), (tokens, _) in zip(requests(), off)]
    return KnownDrafts(texts, graph.limits.draft_depth, graph.limits.vocab_size, right=right)


@pytest.mark.sample(2)
@pytest.mark.parametrize("width", range(1, 6))
def test_d02_every_verify_length_gives_the_same_text(width: int, off: list[tuple]) -> None:
    """sglang#33800, #32038: a depth equal to the checkpoint's block corrupted text. Eight ids over and over, greedy and
    drawn, with the checkpoint's own drafter."""
    graph = golden_graph(*ON, f"speculation.verify_length={width}")
    assert answers(graph) == off
    checked = graph.engine.stats().checked_at
    assert all(checked[:width]) and not any(checked[width:])


@pytest.mark.sample(2)
@pytest.mark.parametrize("depth", range(1, 6))
def test_d02_every_depth_with_right_drafts_gives_the_same_text(depth: int, off: list[tuple]) -> None:
    """Most drafts are right, so that every point of rejection is met; caches have room for exactly this depth."""
    graph = golden_graph(*ON, f"speculation.depth={depth}", f"speculation.verify_length={depth}")
    plant(graph, known(graph, off, right=0.85))
    assert answers(graph) == off
    stats = graph.engine.stats()
    assert all(stats.accepted_at) and sum(stats.accepted_at) < sum(stats.checked_at)


@pytest.mark.sample(3)
@pytest.mark.parametrize("async_depth", [0, 1])
@pytest.mark.parametrize("kind", ["garbage", "shuffled", "budgets"])
def test_no_drafts_however_bad_change_a_token(kind: str, async_depth: int, off: list[tuple]) -> None:
    """Random tokens, holes, NaN as confidence; drafts of other sequences; budgets that nobody would choose."""
    graph = golden_graph(*ON, f"scheduler.async_depth={async_depth}")
    if kind == "garbage":
        plant(graph, GarbageDrafts(graph.limits.draft_depth, graph.limits.vocab_size))
    elif kind == "shuffled":
        plant(graph, ShuffledDrafts(known(graph, off, right=1.0)))
    else:
        plant(graph, known(graph, off, right=0.9))
        graph.engine.scheduler.lengths = SomeDrafts(seed=async_depth)
    assert answers(graph) == off
    stats = graph.engine.stats()
    assert sum(stats.checked_at) > sum(stats.accepted_at)
    if kind == "garbage":
        assert local_executor(graph).drafter.num_holes > 0


def test_greedy_answers_of_rejection_are_those_without_drafts(off: list[tuple]) -> None:
    graph = golden_graph(*ON, "speculation.verify=rejection")
    plant(graph, known(graph, off, right=0.8))
    got = answers(graph)
    assert [got[0], got[2]] == [off[0], off[2]], "the two greedy ones"
    stats = graph.engine.stats()
    assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
