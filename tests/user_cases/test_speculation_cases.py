"""Cases of people who ran other engines with speculation on: what they saw, and that it does not happen here.

These are the verifiers' parts. Whole engines run in tests/engine.
"""

import numpy as np
import pytest
from toy_rounds import Text, draft, logits_after, new_sampler, plain, requests_for, same_logprobs, verify

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier


def rounds(kind: type, requests: list[Request], num_rounds: int = 8) -> list[Text]:
    """Each round checks three drafts of every sequence."""
    verifier = kind(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    for _ in range(num_rounds):
        drafts = draft(verifier, texts, 3)
        verify(verifier, texts, drafts, np.full(len(texts), 3))
    return texts


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
def test_d07_a_requests_seed_decides_alone(kind: type) -> None:
    """vllm#6038, radixark/miles PR#2002: seed 7 at temperature 1.5, with other traffic, after a restart."""
    mine = Request(0, np.array([3, 4, 3]), SamplingParams(temperature=1.5, seed=7), 7)
    others = [Request(i, np.array([5, i]), SamplingParams(temperature=0.5 + i, top_k=i), 100 + i) for i in range(1, 6)]
    (alone,) = rounds(kind, [mine])
    assert rounds(kind, [mine, *others])[0].tokens == alone.tokens
    assert rounds(kind, [*others, mine])[-1].tokens == alone.tokens
    other_seed = Request(0, mine.prompt_ids, mine.params, 8)
    assert rounds(kind, [other_seed])[0].tokens != alone.tokens


def log_softmax(logits_V: np.ndarray) -> np.ndarray:
    shifted_V = logits_V.astype(np.float64) - logits_V.max()
    return shifted_V - np.log(np.exp(shifted_V).sum())


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d08_logprobs_are_the_targets_own(kind: type, temperature: float) -> None:
    """ggml-org/llama.cpp#27972: every one was 0.0."""
    requests = requests_for([SamplingParams(temperature=temperature, logprobs=0)])
    (text,) = rounds(kind, requests)
    for i, (token, found) in enumerate(zip(text.tokens[3:], text.logprobs, strict=True)):
        expected = log_softmax(logits_after(text.tokens[: 3 + i]))[token]
        assert found is not None and found.token_ids.tolist() == [token] and expected < 0
        assert abs(found.logprobs[0] - expected) < 1e-5
    if kind is CoupledVerifier:
        _, (off,) = plain(requests, len(text.logprobs))
        assert all(same_logprobs(on, without) for on, without in zip(text.logprobs, off.logprobs, strict=True))


@pytest.mark.parametrize("kind", [CoupledVerifier, RejectionVerifier])
def test_d09_each_token_of_a_chunk_has_its_own_alternatives(kind: type) -> None:
    """sglang#39260: those of the first were repeated."""
    requests = requests_for([SamplingParams(temperature=0.0, logprobs=2)])
    verifier, text = kind(new_sampler(requests)), Text([3, 4, 3])
    drafts = draft(verifier, [text], 2, drafter=logits_after)
    assert verify(verifier, [text], drafts, np.full(1, 2)).counts.tolist() == [3]
    for i, found in enumerate(text.logprobs):
        best = np.argsort(-logits_after(text.tokens[: 3 + i]))[:3]
        assert found is not None and found.token_ids.tolist() == best.tolist()
    assert len({found.token_ids.tobytes() for found in text.logprobs}) == 3
