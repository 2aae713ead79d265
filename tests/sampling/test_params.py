import math

import msgspec
import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import ParamsError, asked_sampling, find_problems, from_config, validate

V = 100


def problems_of(**fields) -> list[str]:
    return find_problems(SamplingParams(**fields), V)


def test_defaults_and_edges_are_fine() -> None:
    assert problems_of() == []
    assert problems_of(temperature=0, top_p=1.0, top_k=0, min_p=1, n=128, seed=2**63 - 1, logprobs=0) == []
    assert problems_of(logit_bias={0: -100, V - 1: 100.0}, stop=["a"], stop_token_ids=[0, V - 1]) == []


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, None])
def test_numbers_that_are_none_are_refused_by_name(name: str, value: object) -> None:
    (problem,) = problems_of(**{name: value})
    assert problem.startswith(f"{name}={value!r}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("temperature", -0.1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("top_k", -1),
        ("n", 0),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", 129),
        ("ignore_eos", 1),
        ("logprobs_mode", "cooked"),
        ("stop", 5),
        ("stop", ("",)),
        ("bad_words", (3,)),
        ("stop_token_ids", (V,)),
        ("stop_token_ids", "x"),
    ],
)
def test_each_fault_is_named_once(name: str, value: object) -> None:
    (problem,) = problems_of(**{name: value})
    assert problem.startswith(name)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, "100", True, -1, 1.0])
def test_seeds_that_are_no_63_bit_number_are_refused(seed: object) -> None:
    (problem,) = problems_of(seed=seed)
    assert problem.startswith(f"seed={seed!r}")


@pytest.mark.parametrize("bias", [{V: 5}, {-1: 5}, {"abc": 5}, {True: 5}, {3: math.nan}, {3: 101}, {3: "x"}, [3]])
def test_logit_bias_outside_the_vocabulary_or_the_range_is_refused(bias: object) -> None:
    (problem,) = problems_of(logit_bias=bias)
    assert problem.startswith("logit_bias")


def test_all_problems_come_together() -> None:
    with pytest.raises(ParamsError) as caught:
        validate(SamplingParams(temperature=-1, top_p=0, n=0, stop=("",), logit_bias={V: 1}), V)
    assert len(caught.value.problems) == 5
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_length_states_limit_prompt_and_answer() -> None:
    (problem,) = find_problems(SamplingParams(max_tokens=510), V, max_model_len=6, prompt_tokens=6)
    assert "6 tokens" in problem and "510" in problem and "may have 6" in problem
    assert find_problems(SamplingParams(max_tokens=510), V, max_model_len=512, prompt_tokens=6) == []
    assert find_problems(SamplingParams(min_tokens=4, max_tokens=9), V, max_model_len=10, prompt_tokens=7)


def test_min_tokens_above_max_tokens() -> None:
    (problem,) = problems_of(min_tokens=9, max_tokens=8)
    assert "min_tokens=9" in problem and "max_tokens=8" in problem


def test_a_single_text_or_id_is_a_list_of_one() -> None:
    params = SamplingParams(stop=".", bad_words="no", stop_token_ids=3)
    assert (params.stop, params.bad_words, params.stop_token_ids) == ((".",), ("no",), (3,))
    assert msgspec.structs.replace(params, stop="ab").stop == ("ab",) and find_problems(params, V) == []
    assert "stop_token_ids=True" in problems_of(stop_token_ids=True)[0] and "stop=5" in problems_of(stop=5)[0]


def test_what_overrides_chose_is_known_and_auto_is_no_choice() -> None:
    overrides = ["model=v41_tiny", "sampling.top_p=0.5", "+sampling.seed=1", "sampling.temperature=auto"]
    assert asked_sampling(overrides) == {"top_p", "seed"}
    assert asked_sampling(["sampling=greedy"]) == {"temperature"} and asked_sampling([]) == frozenset()


def test_from_config_copies_what_a_request_has() -> None:
    group = msgspec.defstruct(
        "Group", [("max_tokens", int), ("logit_bias", dict), ("stop", tuple), ("seed", int), ("reproducible", bool)]
    )
    params = from_config(group(7, {}, ("a",), 5, True))
    assert params == SamplingParams(max_tokens=7, logit_bias=None, stop=("a",), seed=5)
    assert from_config(group(7, {3: 1.0}, (), 5, True)).logit_bias == {3: 1.0}


def test_something_else_than_params() -> None:
    (problem,) = find_problems({"max_tokens": 3}, V)  # type: ignore[arg-type]
    assert "dict" in problem


@pytest.mark.parametrize("name", ["stop", "bad_words"])
def test_texts_are_bounded_and_can_be_encoded(name: str) -> None:
    most = {"stop": 256, "bad_words": 1000}[name]
    assert problems_of(**{name: ["é" * 500] * most}) == []
    (too_many,) = problems_of(**{name: ["a"] * (most + 1)})
    assert f"{name} holds {most + 1} texts" in too_many and str(most) in too_many
    (too_long,) = problems_of(**{name: ["é" * 501]})
    assert "1002 bytes" in too_long and len(too_long) < 200
    (broken,) = problems_of(**{name: ["fine", "half \udfff"]})
    assert broken.startswith(name) and "surrogate" in broken and broken.encode()
