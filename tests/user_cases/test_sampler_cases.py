"""Sampler cases of people who ran other engines: parameters that had no effect, broke a batch, or meant two things.

What is refused by its value alone is listed in tests/sampling/test_params.py; here it meets a batch.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from toy_llm import VOCAB, make_llm, make_tokenizer
from toy_rounds import EOS, Text, V, draft, logits_after, new_sampler, plain, requests_for, verify

from deepinfer.engine.seeds import sequence_key
from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.params import ParamsError, find_problems, validate
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier


def answers(params: SamplingParams, num_tokens: int = 24, target=logits_after) -> list[int]:
    """An answer that is sampled token by token."""
    _, (text,) = plain(requests_for([params]), num_tokens, target=target)
    return text.tokens[3:]


def speculated(kind: type, params: SamplingParams, num_tokens: int = 24, target=logits_after) -> tuple[list[int], int]:
    """The same with four drafts a round, and how many of them were accepted."""
    requests = requests_for([params])
    verifier, text, accepted = kind(new_sampler(requests)), Text([3, 4, 3]), 0
    while len(text.tokens) < num_tokens + 3:
        drafts = draft(verifier, [text], 4, drafter=target)
        accepted += int(verify(verifier, [text], drafts, np.full(1, 4), target=target).counts[0]) - 1
    return text.tokens[3 : num_tokens + 3], accepted


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[pytest.param(name, math.nan, id=f"m01-{name}") for name in ("temperature", "top_p", "min_p")],
        pytest.param("temperature", math.inf, id="m01-inf"),
        *[pytest.param("logit_bias", {key: 5}, id=f"m05-{key}") for key in (VOCAB, -1, "abc")],
        *[pytest.param("seed", seed, id=f"m12-{seed!r}") for seed in (2**63, -(2**63) - 1, "100", True, -1)],
    ],
)
def test_m01_m05_m12_a_wrong_value_is_named_and_the_batch_goes_on(field: str, value: object, tmp_path: Path) -> None:
    """TensorRT-LLM#17158, sglang PR#28153; vllm PR#16529, sglang#7670; vllm PR#57018, sglang PR#28960."""
    llm, fine = make_llm(make_tokenizer(tmp_path)), SamplingParams(temperature=0.0, max_tokens=8)
    wrong, other = llm.generate(["x", "x"], [SamplingParams(**{field: value}), fine])
    assert wrong.finish_reason == "error" and wrong.error.startswith(field) and not wrong.token_ids
    assert other.text == "yz" and llm.generate("x", fine)[0].text == "yz"


@pytest.mark.parametrize("temperature", [1e-12, 1e-4])
def test_m03_a_tiny_temperature_is_greedy_and_never_nan(temperature: float) -> None:
    """TensorRT-LLM PR#16222, vllm#1623, PR#2937."""
    params = SamplingParams(temperature=temperature, logprobs=2, logprobs_mode="processed", top_p=0.9)
    assert find_problems(params, V) == []
    _, (text,) = plain(requests_for([params]), 12)
    assert text.tokens[3:] == answers(SamplingParams(temperature=0.0), 12)
    assert all(np.isfinite(one.logprobs[0]) and not np.isnan(one.logprobs).any() for one in text.logprobs)


def test_m04_top_p_has_one_meaning() -> None:
    """NVIDIA/Megatron-LM PR#6993: 0 is neither greedy nor off but refused, 1 is off, and log probabilities are numbers."""
    with pytest.raises(ParamsError, match=r"top_p=0\.0 is not above 0 and at most 1: 1 turns it off; for greedy"):
        validate(SamplingParams(top_p=0.0), V)
    off = SamplingParams(top_p=1.0, logprobs=2, logprobs_mode="processed")
    assert answers(off) == answers(SamplingParams())
    _, (text,) = plain(requests_for([off]), 12)
    assert all(np.isfinite(one.logprobs).all() for one in text.logprobs)


def test_m06_a_repetition_penalty_of_zero_is_refused() -> None:
    """sglang PR#21258."""
    with pytest.raises(ParamsError, match=r"repetition_penalty=0\.0 is not from 0\.01 to 100"):
        validate(SamplingParams(repetition_penalty=0.0), V)


EFFECTS = {
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.3,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "presence_penalty": 1.9,
    "frequency_penalty": 1.9,
    "logit_bias": {5: 50.0},
    "bad_words": tuple("abcdefghijkl"),
    "min_tokens": 20,
    "seed": 1,
}


@pytest.mark.parametrize("name", EFFECTS)
def test_m07_each_parameter_has_an_effect(name: str) -> None:
    """sglang#28179: none is accepted and then forgotten. A repeating prompt, a model that likes to repeat and to end."""

    def target(tokens: list[int]) -> np.ndarray:
        logits = logits_after(tokens)
        logits[[3, EOS]] += 6
        return logits

    changed = SamplingParams(**{name: EFFECTS[name]})
    seed = 7 if name != "seed" else 1
    _, (text,) = plain(requests_for([changed], seed=seed), 24, target=target)
    assert text.tokens[3:] != answers(SamplingParams(), target=target)


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize(
    "field", [{"frequency_penalty": 1.5}, {"frequency_penalty": -1.5}, {"repetition_penalty": 1.5}]
)
def test_m08_penalties_have_their_effect_on_verify_rows(kind: type, field: dict) -> None:
    """vllm#18902, PR#42802, TensorRT-LLM PR#17701: greedy text with speculation on is that with it off."""

    def target(tokens: list[int]) -> np.ndarray:  # always the same few tokens, so that penalties decide
        return (logits_after([]) + logits_after(tokens) * np.float32(0.2)).astype(np.float32)

    params = SamplingParams(temperature=0.0, **field)
    text, accepted = speculated(kind, params, target=target)
    assert accepted > 10 and text == answers(params, target=target)
    if min(field.values()) > 0:
        assert text != answers(SamplingParams(temperature=0.0), target=target)


def test_m08_min_p_has_its_effect_on_verify_rows() -> None:
    params = SamplingParams(min_p=0.4, temperature=1.5)
    text, accepted = speculated(CoupledVerifier, params)
    assert accepted > 10 and text == answers(params) != answers(SamplingParams(temperature=1.5))


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_m09_the_end_is_masked_on_each_verify_row_until_min_tokens(kind: type, temperature: float) -> None:
    """vllm PR#32642, PR#26317: four drafts, a model that wants to end after three tokens."""

    def target(tokens: list[int]) -> np.ndarray:
        logits = logits_after(tokens)
        logits[EOS] = 30 if len(tokens) >= 6 else -30
        return logits

    params = SamplingParams(temperature=temperature, min_tokens=10)
    text, accepted = speculated(kind, params, 11, target)
    assert accepted and EOS not in text[:10] and text[10] == EOS
    free, _ = speculated(kind, SamplingParams(temperature=temperature), 11, target)
    assert free.index(EOS) == 3


def test_m10_the_same_answer_alone_and_among_31_others() -> None:
    """vllm-ascend#11317, vllm#23138: this is the sampler's part; tests/engine has the model's."""
    alone = requests_for([SamplingParams(temperature=0.0, logprobs=1, repetition_penalty=1.2)])
    kinds = [SamplingParams(), SamplingParams(temperature=0.0), SamplingParams(top_p=0.5, logprobs=3)]
    crowd = [*alone, *(Request(i, np.array([i % V, 2]), kinds[i % 3], i) for i in range(1, 32))]
    _, (single, *_) = plain(alone, 16)
    _, (among, *_) = plain(crowd, 16)
    assert single.tokens == among.tokens
    assert [one.logprobs.tobytes() for one in single.logprobs] == [one.logprobs.tobytes() for one in among.logprobs]


def test_m13_answers_of_one_request_are_independent_and_derived_from_its_seed() -> None:
    """deepseek-recipe: n = 2 gives two answers, the first being what n = 1 gives."""
    assert find_problems(SamplingParams(n=2), V) == []

    def both() -> list[list[int]]:
        requests = [Request(i, np.array([3, 4, 3]), SamplingParams(n=2), sequence_key(7, i)) for i in range(2)]
        return [text.tokens[3:] for text in plain(requests, 24)[1]]

    first, second = both()
    assert first == answers(SamplingParams()) and first != second and both() == [first, second]
