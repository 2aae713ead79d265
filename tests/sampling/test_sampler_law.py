"""The whole sampler against exact probabilities: many seeds at one position, many positions of one seed, every filter."""

import numpy as np
import pytest
from chi_square import p_value

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.sampler import Sampler

V = 24
LOGITS_V = np.random.default_rng(3).normal(size=V).astype(np.float32) * 2
PROMPT = np.array([1, 2, 3, 3])


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def exact(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, **_) -> np.ndarray:
    """The distribution by the book, written without the sampler's own parts."""
    p = softmax(LOGITS_V.astype(np.float64) / temperature)
    order = sorted(range(V), key=lambda i: (-p[i], i))
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    reached = 0.0
    for i in order:
        if reached >= top_p:
            p[i] = 0
        reached += p[i]
    p[p < min_p * p.max()] = 0
    return p / p.sum()


def draw(
    params: SamplingParams, seeds: np.ndarray, positions: np.ndarray, logits_V: np.ndarray = LOGITS_V
) -> np.ndarray:
    sampler = Sampler(V, len(seeds))
    for slot, seed in enumerate(seeds):
        sampler.admit(slot, Request(slot, PROMPT, params, int(seed)))
    logits_RV = np.tile(logits_V, (len(seeds), 1))
    tokens = sampler.sample(logits_RV, np.arange(len(seeds)), positions).token_ids
    return np.bincount(tokens, minlength=V)


SETTINGS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_many_seeds_at_one_position(setting: dict) -> None:
    counts = draw(SamplingParams(**setting), np.arange(8000) * 7919 + 1, np.full(8000, 9))
    assert p_value(counts, exact(**setting)) > 1e-3


@pytest.mark.sample(3)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_many_positions_of_one_seed(setting: dict) -> None:
    counts = draw(SamplingParams(**setting), np.full(8000, 2**62 + 11), np.arange(4, 8004))
    assert p_value(counts, exact(**setting)) > 1e-3


def test_penalties_and_bias_are_in_the_law() -> None:
    params = SamplingParams(repetition_penalty=1.5, logit_bias={7: 2.0, 0: -100}, logprobs=0)
    scores = LOGITS_V.astype(np.float64)
    scores[7] += 2
    scores[0] -= 100
    for token in (1, 2, 3):
        scores[token] = scores[token] / 1.5 if scores[token] > 0 else scores[token] * 1.5
    counts = draw(params, np.arange(8000) + 5, np.full(8000, 4))
    assert p_value(counts, softmax(scores)) > 1e-3


def test_the_test_sees_a_wrong_law() -> None:
    counts = draw(SamplingParams(), np.arange(8000), np.full(8000, 9))
    assert p_value(counts, exact(temperature=1.1)) < 1e-6


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    uniform = np.zeros(V, np.float32)
    sampler = Sampler(V, 200)
    for slot in range(200):
        sampler.admit(slot, Request(slot, PROMPT, SamplingParams(), slot))
    table = np.stack(
        [
            sampler.sample(np.tile(uniform, (200, 1)), np.arange(200), np.full(200, position)).token_ids
            for position in range(4, 204)
        ]
    )
    for left, right in [(table[1:], table[:-1]), (table[:, 1:], table[:, :-1])]:
        pairs = np.bincount(left.ravel() * V + right.ravel(), minlength=V * V)
        assert p_value(pairs, np.full(V * V, 1 / V**2)) > 1e-3
