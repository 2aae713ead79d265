"""The configuration's defaults of a request and a request itself have the same ranges."""

import pytest

from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import find_problems

CASES = [
    ("temperature", -0.1, 100.5, 100.0),
    ("top_k", -1, 2**31, 7),
    ("top_p", 0.0, 1.5, 0.5),
    ("min_p", -0.1, 1.1, 0.5),
    ("repetition_penalty", 0.001, 101.0, 1.5),
    ("presence_penalty", -2.5, 2.5, 1.0),
    ("frequency_penalty", -2.5, 2.5, -1.0),
    ("max_tokens", 0, 2**31, 5),
    ("n", 0, 129, 128),
    ("seed", -1, 2**63, 2**63 - 1),
]


@pytest.mark.parametrize(("key", "low", "high", "good"), CASES)
def test_both_doors_have_one_range(key: str, low: float, high: float, good: float) -> None:
    for value in (low, high):
        with pytest.raises(Refused, match=f"sampling.{key}"):
            load(f"sampling.{key}={value}")
        assert any(key in problem for problem in find_problems(SamplingParams(**{key: value}), 3584))
    assert getattr(load(f"sampling.{key}={good}").sampling, key) == good
    assert not find_problems(SamplingParams(**{key: good}), 3584)


@pytest.mark.parametrize("text", ["stop", "bad_words"])
def test_empty_texts_are_refused_at_both(text: str) -> None:
    with pytest.raises(Refused, match=text):
        load(f'sampling.{text}=[""]')
    assert find_problems(SamplingParams(**{text: ("",)}), 3584)
