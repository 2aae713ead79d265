"""Prefix hits on real models: warm = cold, token for token and logprob for logprob, on caches whose freed parts are NaN."""

import numpy as np
import pytest
from golden_engine import golden_graph, run, small_plan

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams

SAMPLED = SamplingParams(max_tokens=6, temperature=0.8, seed=5, ignore_eos=True, logprobs=2)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=2)


def ids(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 1900, count)


def cold_and_warm(graph: EngineGraph, prompt: np.ndarray, params: SamplingParams, salt: str) -> tuple[dict, dict]:
    """The answer under a salt of its own, and under the one that everybody shares."""
    engine, submit = graph.engine, graph.engine.submit
    try:
        engine.submit = lambda *args: submit(*args, cache_salt=salt)
        cold = run(graph, [prompt], [params])[0]
    finally:
        engine.submit = submit
    return cold, run(graph, [prompt], [params])[0]


@pytest.fixture(scope="module", params=["snapshot", "exact"])
def golden(request: pytest.FixtureRequest) -> EngineGraph:
    """Ten layers with a window of 16: exact replay takes 150 rows."""
    return golden_graph(
        "cache=prefix",
        "cache.snapshot_every=1",
        f"replay.on_hit={request.param}",
        "cache.num_blocks=200",
        *(("cache.snapshot_bytes=24MiB",) if request.param == "snapshot" else ()),
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("shared", [63, 64, 127, 128, 129, 255, 256, 257])
def test_prompts_that_share_about_a_block_are_answered_as_if_alone(golden: EngineGraph, shared: int) -> None:
    """User cases K01 and K04."""
    first, second, stranger = ids(270, 1), ids(270, 2), ids(140, shared)
    second[:shared] = first[:shared]
    run(golden, [first], [GREEDY])
    before = golden.engine.stats().prefix
    cold, warm = cold_and_warm(golden, second, SAMPLED, f"salt {shared}")
    assert warm == cold
    replayed = 0 if before.snapshots else 150
    assert golden.engine.stats().prefix.saved_tokens - before.saved_tokens == max(0, shared // 128 * 128 - replayed)
    assert run(golden, [stranger, second], [GREEDY, SAMPLED])[1] == cold


def test_the_same_prompt_four_times_is_the_same_answer(golden: EngineGraph) -> None:
    """User case K01."""
    prompt = ids(200, 77)
    answers = [run(golden, [prompt], [GREEDY])[0] for _ in range(4)]
    assert answers[1:] == answers[:1] * 3


def test_prompt_logprobs_do_not_change_on_a_warm_cache(golden: EngineGraph) -> None:
    asked = SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=1)
    cold, warm = cold_and_warm(golden, ids(300, 1), asked, "prompt")
    assert warm == cold and len(warm["prompt"]) == 299


SPECULATIVE = [
    (
        "speculation=dspark_fixed",
        "speculation.verify_length=3",
        "speculation.verify=coupled",
        "scheduler.async_depth=1",
    ),
    ("speculation=ngram", "speculation.verify=coupled"),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", SPECULATIVE, ids=lambda options: options[0].partition("=")[2])
def test_a_conversation_with_speculation_is_the_one_without_a_cache(options: tuple[str, ...]) -> None:
    """User cases K02 and K05: it hits, also where the answer crossed block ends, and drafts as well as a cold run."""
    tiny = ("model=v41_tiny", *options)
    warm = build_graph(small_plan(*tiny, "cache=prefix", "cache.num_blocks=60"), poison_freed=True)
    cold = build_graph(small_plan(*tiny, "cache=paged", "cache.num_blocks=60"), poison_freed=True)
    said = ids(110, 3)
    params = SamplingParams(max_tokens=30, temperature=0.7, seed=22, ignore_eos=True, logprobs=1)
    for turn in range(3):
        answers = [run(graph, [said], [params])[0] for graph in (warm, cold)]
        assert answers[0] == answers[1], f"turn {turn}"
        said = np.concatenate([said, answers[0]["tokens"], ids(100, turn)])
    stats = [graph.engine.stats() for graph in (warm, cold)]
    assert stats[0].prefix.saved_tokens == 128 + 256
    assert stats[0].accepted_at == stats[1].accepted_at and stats[0].checked_at == stats[1].checked_at
    assert sum(stats[0].checked_at) > 20


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["mask", "compact"])
@pytest.mark.parametrize("on_hit", ["snapshot", "exact"])
def test_bounded_replay_gives_one_answer_with_and_without_a_hit(kind: str, on_hit: str) -> None:
    graph = golden_graph(
        "cache=prefix", "cache.snapshot_every=1", "cache.num_blocks=60", f"replay={kind}", "replay.keep_tokens=40",
        f"replay.on_hit={on_hit}",
    )  # fmt: skip
    base, longer = ids(300, 1), np.concatenate([ids(300, 1), ids(100, 2)])
    run(graph, [base], [SAMPLED])
    for prompt in (base, longer):
        cold, warm = cold_and_warm(graph, prompt, SAMPLED, str(len(prompt)))
        assert warm == cold
    assert graph.engine.stats().prefix.hits == 2


def test_a_preempted_sequence_goes_on_from_its_own_block() -> None:
    """Five blocks for three answers that need two each: the last one waits, and computes nothing again."""
    prompts = [ids(110, seed) for seed in range(3)]
    params = SamplingParams(max_tokens=30, temperature=0.9, seed=1, ignore_eos=True, logprobs=1)
    sizes = ("model.max_model_len=384", "cache.snapshot_bytes=8MiB")
    plenty, scarce = (golden_graph("cache=prefix", f"cache.num_blocks={count}", *sizes) for count in (60, 5))
    assert run(scarce, prompts, [params] * 3) == run(plenty, prompts, [params] * 3)
    stats = scarce.engine.stats()
    assert stats.preemptions > 0 and stats.recomputed_tokens == 0


def test_nobody_reads_a_snapshot_that_is_free() -> None:
    """More prompts than there is room for states: those that gave way are NaN until they are written again."""
    graph = golden_graph(
        "cache=prefix", "cache.snapshot_every=1", "cache.num_blocks=60", "cache.snapshot_bytes=30000",
        "model.max_model_len=384",
    )  # fmt: skip
    pool, state = graph.engine.scheduler.prefix.cache.snapshots, graph.cache.state
    size, num_slots = pool.size, graph.cache.num_slots
    prompts = [ids(150, seed) for seed in range(size + 2)]
    for number, prompt in enumerate(prompts):
        cold, warm = cold_and_warm(graph, prompt, SAMPLED, str(number))
        assert warm == cold
    assert pool.num_evicted >= size > 0
    pool.forget(np.arange(60))
    assert pool.num_unused == size
    assert (state[num_slots:] == 0xFF).all()
