"""Cases of people who ran other engines under load, or with speculation, as inputs of a whole engine on the tiny model."""

import pytest

from deepinfer.api import LLM
from deepinfer.interfaces import SamplingParams

SMALL = ("model=v41_tiny", "hardware=cpu", "sampling=reproducible", "model.max_model_len=256", "model.threads=1")
DRAFTED = ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false")
TEXT = "<｜User｜>Count the list red, blue, green, red, blue, green.<｜Assistant｜></think>"


@pytest.fixture(scope="module")
def off() -> LLM:
    return LLM(*SMALL)


@pytest.fixture(scope="module")
def on() -> LLM:
    return LLM(*SMALL, *DRAFTED, "scheduler.async_depth=1")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d08_logprobs_with_speculation_are_those_without(off: LLM, on: LLM, temperature: float) -> None:
    """ggml-org/llama.cpp#27972: every one was 0.0."""
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=16, ignore_eos=True, logprobs=2)
    (plain,), (drafted,) = off.generate(TEXT, params), on.generate(TEXT, params)
    assert drafted.logprobs == plain.logprobs and drafted.token_ids == plain.token_ids
    assert plain.logprobs is not None and len(plain.logprobs) == 16
    assert all(min(row.values()) < 0.0 for row in plain.logprobs)
    assert sum(on.engine.stats().accepted_at) > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
@pytest.mark.parametrize("width", range(1, 6))
def test_d02_the_trained_drafter_changes_no_greedy_text_at_any_verify_length(off: LLM, width: int, verify: str) -> None:
    """sglang#33800, #32038: a depth equal to the checkpoint's corrupted it. Eight words over and over."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    prompt = "<｜User｜>Echo: " + "red blue green one two three four five " * 3 + "<｜Assistant｜></think>"
    drafts = ("speculation=dspark_fixed", f"speculation.verify_length={width}", "speculation.back_off=false")
    with LLM(*SMALL[:2], *SMALL[3:], *drafts, f"speculation.verify={verify}") as fixed:
        assert fixed.generate(prompt, params)[0].token_ids == off.generate(prompt, params)[0].token_ids
        stats = fixed.engine.stats()
    assert all(stats.checked_at[:width]) and not any(stats.checked_at[width:])
    assert sum(stats.accepted_at) > 0


def test_d07_a_seed_gives_its_tokens_with_other_traffic_and_after_a_restart(on: LLM) -> None:
    """vllm#6038, radixark/miles PR#2002: seed 7 at temperature 1.5, twice, others between."""
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=12, ignore_eos=True)
    others = [SamplingParams(temperature=1.0, max_tokens=5 + i) for i in range(4)]
    (alone,) = on.generate(TEXT, params)
    *_, among, _ = on.generate([TEXT] * 3 + [TEXT, "x"], [*others[:3], params, others[3]])
    with LLM(*SMALL, *DRAFTED) as restarted:
        (again,) = restarted.generate(TEXT, params)
    assert alone.token_ids == among.token_ids == again.token_ids
    (other,) = on.generate(TEXT, SamplingParams(temperature=1.5, seed=8, max_tokens=12, ignore_eos=True))
    assert other.token_ids != alone.token_ids


def test_m08_penalties_act_under_speculation_as_without(off: LLM, on: LLM) -> None:
    """vllm#18902, PR#42802, TensorRT-LLM PR#17701: they had no effect."""
    answers = []
    for penalty in (1.5, 0.0, -1.5):
        params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, frequency_penalty=penalty)
        (plain,), (drafted,) = off.generate(TEXT, params), on.generate(TEXT, params)
        assert drafted.token_ids == plain.token_ids
        answers.append(tuple(plain.token_ids))
    assert len(set(answers)) == 3


def test_m11_forty_four_of_the_same_are_one_answer(full: bool) -> None:
    """vllm#51187: invariant at 8 sequences and no longer at 44; five rounds of them with --full."""
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, logprobs=0)
    with LLM(*SMALL, "scheduler.max_num_seqs=44", "scheduler.max_prefill_tokens=61") as llm:
        (alone,) = llm.generate("Hello", params)
        for _ in range(5 if full else 1):
            outs = llm.generate(["Hello"] * 44, params)
            assert {tuple(out.token_ids) for out in outs} == {tuple(alone.token_ids)}
            assert all(out.logprobs == alone.logprobs for out in outs)
