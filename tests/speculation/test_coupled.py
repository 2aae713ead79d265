"""Coupled verification gives what plain sampling gives: tokens, log probabilities and histories, bit for bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_rounds import (
    Text,
    V,
    draft,
    history_of,
    logits_after,
    new_sampler,
    num_usable,
    plain,
    random_mask,
    requests_for,
    same_logprobs,
    verify,
)

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.history import History
from deepinfer.sampling.rows import Rows
from deepinfer.speculation.coupled import CoupledVerifier

GREEDY = SamplingParams(temperature=0.0)

params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 5]),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -1.5, 1.5]),
    logit_bias=st.sampled_from([None, None, {5: 4.0, 9: -100.0}]),
    bad_words=st.sampled_from([(), (), ("c", "dd", "fgh")]),
    min_tokens=st.sampled_from([0, 0, 6]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    logprobs=st.sampled_from([None, None, 0, 3]),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(params_of_any_kind, st.booleans()), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(0, 2**31),
)
def test_everything_equals_plain_sampling(asked: list, depth: int, seed: int) -> None:
    """Random parameters, drafts of every origin, lengths and masks; the text is compared after every round."""
    masked = [mask for _, mask in asked]

    def mask_of(s: int, tokens: list[int]) -> np.ndarray | None:
        return random_mask(tokens) if masked[s] else None

    requests = requests_for([one for one, _ in asked], seed=seed)
    rng = np.random.default_rng(seed)
    _, expected = plain(requests, 24, mask_of)
    sampler = new_sampler(requests)
    verifier = CoupledVerifier(sampler)
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    while max(len(text.tokens) for text in texts) < 20:
        drafts, origin = np.full((len(texts), depth), -1), rng.integers(4)
        if origin < 2:
            drafts = draft(verifier, texts, depth, mask_of)
        elif origin == 2:
            drafts = draft(verifier, texts, depth, mask_of, propose=lambda _: int(rng.integers(-1, V)))
        lengths = np.minimum(rng.integers(0, depth + 1, len(texts)), num_usable(drafts))
        verify(verifier, texts, drafts, lengths, mask_of)
        for s, (text, whole) in enumerate(zip(texts, expected)):
            assert text.failure is None and text.tokens == whole.tokens[: len(text.tokens)]
            assert all(same_logprobs(a, b) for a, b in zip(text.logprobs, whole.logprobs))
            assert history_of(sampler, s, len(text.tokens)) == plain_history(requests, s, text.tokens)


def plain_history(requests: list[Request], slot: int, tokens: list[int]) -> tuple | None:
    """As if the answer had been put there token by token."""
    sampler = new_sampler(requests)
    num_prompt = len(requests[slot].prompt_ids)
    sampler.record(slot, num_prompt, tokens[num_prompt:])
    return history_of(sampler, slot, len(tokens))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_k=4, frequency_penalty=1.0)])
def test_the_texts_are_plain_ones_though_drafts_are_good_and_bad(params: SamplingParams) -> None:
    """Both must happen: drafts that are accepted, and drafts that are not."""
    requests = requests_for([params] * 6)
    _, expected = plain(requests, 40)
    verifier = CoupledVerifier(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    accepted = checked = 0
    while max(len(text.tokens) for text in texts) < 36:
        drafts = draft(verifier, texts, 4)
        verified = verify(verifier, texts, drafts, np.full(6, 4))
        accepted, checked = accepted + int((verified.counts - 1).sum()), checked + 24
    assert all(text.tokens == whole.tokens[: len(text.tokens)] for text, whole in zip(texts, expected))
    assert 0.2 * checked < accepted < 0.95 * checked


def test_a_perfect_drafter_is_always_right() -> None:
    """With the target's own logits every draft is the target's sample: the noise is the same."""
    requests = requests_for([SamplingParams(), SamplingParams(top_p=0.7, repetition_penalty=1.3, min_tokens=9), GREEDY])
    verifier = CoupledVerifier(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    for _ in range(6):
        drafts = draft(verifier, texts, 5, drafter=logits_after)
        assert verify(verifier, texts, drafts, np.full(3, 5)).counts.tolist() == [6, 6, 6]


# --- faults that the tests above must see


def shifted(sample, **change):
    """`Rows.sample` with other noise or positions."""

    def faulty(self, rows, slots, positions, masks=None, *, logprobs=True):
        return sample(self, rows, slots, positions + change.get("by", 0), masks, stream=change.get("stream", 0))

    return faulty


def texts_with(params: SamplingParams, after_drafts=lambda: None) -> tuple[list[Text], list[Text]]:
    """(decoded in rounds of four drafts, plainly). `after_drafts` is called between the first drafts and their check."""
    requests = requests_for([params] * 4)
    _, expected = plain(requests, 16)
    verifier, texts = (
        CoupledVerifier(new_sampler(requests)),
        [Text(request.prompt_ids.tolist()) for request in requests],
    )
    for _ in range(3):
        drafts = draft(verifier, texts, 4)
        after_drafts()
        verify(verifier, texts, drafts, np.full(4, 4))
    return texts, expected


def differ(texts: list[Text], expected: list[Text]) -> bool:
    return any(text.tokens != whole.tokens[: len(text.tokens)] for text, whole in zip(texts, expected))


@pytest.mark.parametrize("change", [{"stream": 1}, {"stream": 4}, {"by": 1}], ids=str)
def test_planted_faults_of_the_noise_are_seen(change: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Rows.sample
    assert not differ(*texts_with(SamplingParams()))
    found = texts_with(SamplingParams(), lambda: monkeypatch.setattr(Rows, "sample", shifted(sample, **change)))
    assert differ(*found)


def test_a_history_that_is_not_written_anew_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafts stay in it although other tokens were chosen."""
    params, write = SamplingParams(presence_penalty=1.9, repetition_penalty=1.9), History.write

    def write_once(self, position: int, token_id: int) -> None:
        if position == self._length:
            write(self, position, token_id)

    assert not differ(*texts_with(params))
    monkeypatch.setattr(History, "write", write_once)
    assert differ(*texts_with(params))
