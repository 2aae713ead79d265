"""Alone = batched = preempted = chunked, token for token, on the toy model that reads its history back through the caches."""

import numpy as np
import pytest
from toy_executor import assert_empty, expected_answer, run_all, toy_engine, toy_limits

from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.seeds import sequence_key
from deepinfer.interfaces import SamplingParams


def random_requests(
    rng: np.random.Generator, count: int, limits: EngineLimits
) -> list[tuple[list[int], SamplingParams]]:
    requests = []
    for _ in range(count):
        prompt = rng.integers(0, limits.vocab_size, rng.integers(1, 40)).tolist()
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 30)),
            min_tokens=0,
            seed=int(rng.integers(2**62)),
            ignore_eos=bool(rng.integers(2)),
            stop_token_ids=tuple(rng.integers(0, limits.vocab_size, rng.integers(0, 3)).tolist()),
            n=int(rng.integers(1, 3)),
        )
        requests.append((prompt, params))
    return requests


@pytest.mark.sample(60)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("num_blocks", [16, 19, 30, 200])
@pytest.mark.parametrize("async_depth", [0, 1])
@pytest.mark.parametrize("draft_depth", [0, 1, 4])
def test_any_schedule_gives_the_tokens_of_a_lone_run(
    seed: int, num_blocks: int, async_depth: int, draft_depth: int
) -> None:
    rng = np.random.default_rng([seed, num_blocks])
    limits = toy_limits(
        num_blocks=num_blocks,
        async_depth=async_depth,
        draft_depth=draft_depth,
        max_num_seqs=int(rng.integers(1, 9)),
        max_num_batched_tokens=int(rng.integers(9, 70)),
        max_prefill_tokens=int(rng.integers(1, 70)),
    )
    engine, wanted = toy_engine(limits), {}
    for prompt, params in random_requests(rng, 14, limits):
        ids = engine.submit(np.array(prompt), params, priority=int(rng.integers(-1, 2)))
        for n_index, request_id in enumerate(ids):
            wanted[request_id] = expected_answer(prompt, sequence_key(params.seed, n_index), params, limits)
        for _ in range(rng.integers(0, 4)):  # arrivals between steps
            for event in engine.step():
                wanted[event.request_id] = wanted[event.request_id][len(event.token_ids) :]
    ends = run_all(engine)
    assert {i: tokens for i, (tokens, _, _) in ends.items()} == {i: w for i, w in wanted.items() if i in ends}
    assert all(not rest for i, rest in wanted.items() if i not in ends)
    if num_blocks == 200 or limits.max_num_seqs == 1:
        assert engine.stats().preemptions == 0
    assert_empty(engine)


def test_preemption_really_happens_and_loses_nothing() -> None:
    limits = toy_limits(num_blocks=16, max_num_seqs=6)
    engine = toy_engine(limits)
    prompts = [[i + 1] * 9 for i in range(6)]
    params = SamplingParams(max_tokens=40, seed=11, ignore_eos=True)
    ids = [engine.submit(np.array(p), params)[0] for p in prompts]
    ends = run_all(engine)
    stats = engine.stats()
    assert stats.preemptions > 5 and stats.recomputed_tokens > 50
    assert [ends[i][0] for i in ids] == [expected_answer(p, 11, params, limits) for p in prompts]
    assert stats.sampled_tokens == 6 * 40, "a token was sampled twice"
    assert_empty(engine)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 16])
def test_prompts_around_block_borders_in_chunks_of_any_size(length: int, chunk: int) -> None:
    limits = toy_limits(max_num_seqs=1, max_num_batched_tokens=chunk, max_prefill_tokens=chunk)
    engine = toy_engine(limits)
    prompt, params = list(range(1, length + 1)), SamplingParams(max_tokens=6, seed=2, ignore_eos=True)
    (request_id,) = engine.submit(np.array(prompt), params)
    assert run_all(engine)[request_id] == (expected_answer(prompt, 2, params, limits), "length", None)
    assert engine.stats().prefill_rows == length
    assert [len(s.token_ids) for s in engine.executor.steps[: -(-length // chunk)]] == [
        min(chunk, length - start) for start in range(0, length, chunk)
    ]
