"""Reported faults of other engines' prefix caches as inputs."""

import numpy as np
import pytest
from toy_executor import assert_empty, expected_answer, run_all, toy_limits
from toy_prefix import toy_prefix_engine

from deepinfer.api import LLM
from deepinfer.interfaces import SamplingParams

PROMPT = (np.random.default_rng(0).integers(3, 3000, 140)).tolist()
GREEDY = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def warm() -> LLM:
    """Reproducible, with speculation."""
    return LLM(
        "model=v41_tiny", "cache=prefix", "cache.num_blocks=40", "sampling=reproducible", "speculation=dspark_fixed",
        "model.max_model_len=512", "scheduler.max_num_seqs=4", "model.threads=1",
    )  # fmt: skip


def told(llm: LLM, *prompts: list[int]) -> list[tuple[list[int], list[dict[int, float]] | None]]:
    return [(output.token_ids, output.logprobs) for output in llm.generate(list(prompts), GREEDY)]


def test_k01_k02_n04_the_same_prompt_four_times(warm: LLM) -> None:
    """ROCm/ATOM#1417: nothing came of the second; 1Cat-vLLM#205, vllm#42948: no hits with speculation on;
    sglang#34683, vllm PR#52701: a warm prefix gave other tokens."""
    answers = [warm.generate([PROMPT], GREEDY)[0] for _ in range(4)]
    assert [answer.cached_tokens for answer in answers] == [0, 128, 128, 128]
    assert all((a.token_ids, a.logprobs) == (answers[0].token_ids, answers[0].logprobs) for a in answers)
    assert not any(answer.approximate for answer in answers)
    assert sum(warm.engine.stats().checked_at) > 0
    assert not any("prefix cache" in notice for notice in warm.take_notices())


def test_k04_exactly_one_block_shared_beside_one_that_shares_none(warm: LLM) -> None:
    """sglang#22819: the prefix was corrupted, deterministic mode on."""
    stranger = np.random.default_rng(9).integers(3, 3000, 130).tolist()
    for shared in (127, 128, 129):
        sharing = [*PROMPT[:shared], *(token + 1 for token in PROMPT[shared:])]
        together = told(warm, PROMPT, sharing, stranger)
        assert together == [told(warm, prompt)[0] for prompt in (PROMPT, sharing, stranger)]


def test_k03_a_prompt_shorter_than_the_granularity_never_hits_and_says_why() -> None:
    """vllm-ascend#16270. The plan prints the granularity (f18); a block is the smallest that compressed keys share."""
    limits = toy_limits(block_tokens=64, max_model_len=128)
    engine, prompt = toy_prefix_engine(limits), np.arange(1, 49)
    notices = []
    for _ in range(40):
        engine.submit(prompt, SamplingParams(max_tokens=1, seed=1))
        run_all(engine)
        notices += engine.take_notices()
    assert notices == [
        "prefix cache: 0 hits although 16 prompts shared 32 tokens or more with an earlier one (blocks of 64): "
        "16 × prompts of no more than one block"
    ]


@pytest.mark.parametrize("async_depth", [0, 1])
def test_s07_a_preempted_request_finds_its_own_blocks(async_depth: int) -> None:
    """nano-vllm PR#211: pool of four blocks; tokens were counted before the match."""
    limits = toy_limits(num_blocks=4, max_model_len=16, max_num_seqs=2, async_depth=async_depth)
    engine = toy_prefix_engine(limits, num_snapshots=4)
    params = SamplingParams(max_tokens=10, seed=3, ignore_eos=True)
    prompts = {engine.submit(np.array(p), params)[0]: p for p in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6])}
    ends = run_all(engine)
    assert {i: ends[i][0] for i in prompts} == {i: expected_answer(p, 3, params, limits) for i, p in prompts.items()}
    assert engine.stats().preemptions > 0
    assert_empty(engine)


def test_f18_no_hits_are_told_with_their_cause() -> None:
    """1Cat-vLLM#205, vllm-ascend#13339: `hit rate: 0.0%` every ten seconds."""
    limits = toy_limits(block_tokens=64, max_model_len=256, num_blocks=80)
    engine, rng = toy_prefix_engine(limits, num_snapshots=0), np.random.default_rng(1)
    for _ in range(17):
        prompt = np.concatenate([np.arange(100) % 50, rng.integers(0, 50, 20)])
        engine.submit(prompt, SamplingParams(max_tokens=1, seed=1))
        run_all(engine)
    (notice,) = engine.take_notices()
    assert "16 prompts shared 64 tokens or more" in notice and "cache.snapshot_bytes has room for no snapshot" in notice
    assert engine.take_notices() == []
