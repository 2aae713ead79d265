"""The rejection step: its law by enumeration; greedy text, log probabilities and histories as in plain sampling."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
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
from deepinfer.speculation.rejection import RejectionVerifier, acceptance, one_hot, residual

# --- by enumeration: every draft, every coin, every token in a rejected draft's place


def law_of_a_round(target: Callable, proposal: Callable, believed: Callable, gamma: int, size: int) -> dict:
    """Text of gamma + 1 tokens → its probability, where a round's text is carried on by the target.

    `target`, `proposal` (what drafts are drawn from) and `believed` (what the ratio test takes it for) map a text to [V].
    """
    law: dict[tuple, float] = {}

    def carry_on(text: tuple, chance: float) -> None:
        if len(text) == gamma + 1:
            law[text] = law.get(text, 0.0) + chance
            return
        for token, p in enumerate(target(text)):
            carry_on((*text, token), chance * p)

    for drafts in product(range(size), repeat=gamma):
        chance = np.prod([proposal(drafts[:i])[drafts[i]] for i in range(gamma)])
        for i, token_id in enumerate(drafts):
            p_V, q_V = target(drafts[:i]), believed(drafts[:i])
            if chance == 0:
                break
            accept = float(acceptance(p_V[token_id], q_V[token_id]))
            for token, rest in enumerate(residual(p_V, q_V)):
                carry_on((*drafts[:i], token), chance * (1 - accept) * rest)
            chance *= accept
        carry_on(drafts, chance)
    return law


def distance(law: dict, target: Callable) -> float:
    """Total variation between a law of texts and the target's own."""
    own = {text: np.prod([target(text[:i])[token] for i, token in enumerate(text)]) for text in law}
    assert abs(sum(own.values()) - 1) < 1e-9
    return 0.5 * sum(abs(law[text] - own[text]) for text in law)


def random_model(rng: np.random.Generator, size: int) -> Callable:
    """Text → [V]. Some tokens are impossible."""
    known: dict[tuple, np.ndarray] = {}

    def of(text: tuple) -> np.ndarray:
        if text not in known:
            p_V = rng.random(size) * (rng.random(size) < 0.8)
            p_V[rng.integers(size)] += 0.1
            known[text] = p_V / p_V.sum()
        return known[text]

    return of


def best_of(model: Callable, size: int) -> Callable:
    return lambda text: one_hot(int(model(text).argmax()), size)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("gamma", [1, 2])
def test_a_round_keeps_the_targets_law_exactly(size: int, gamma: int) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        target, drafter = random_model(rng, size), random_model(rng, size)
        assert distance(law_of_a_round(target, drafter, drafter, gamma, size), target) < 1e-12
        assert distance(law_of_a_round(target, target, target, gamma, size), target) < 1e-12


@pytest.mark.parametrize("gamma", [1, 2])
def test_the_proposal_must_be_what_the_ratio_test_believes(gamma: int) -> None:
    """The best token of a softmax, judged as if drawn from it, breaks the law; judged as certain it does not."""
    p_V, q_V = np.array([0.5, 0.3, 0.2]), np.array([0.6, 0.3, 0.1])

    def target(text: tuple) -> np.ndarray:
        return p_V

    def drafter(text: tuple) -> np.ndarray:
        return q_V

    best = best_of(drafter, 3)
    wrong = law_of_a_round(target, best, drafter, gamma, 3)
    first = [sum(chance for text, chance in wrong.items() if text[0] == token) for token in range(3)]
    assert np.allclose(first, [5 / 6, 0, 1 / 6]) and distance(wrong, target) > 0.3
    assert distance(law_of_a_round(target, best, best, gamma, 3), target) < 1e-12


def test_nothing_left_of_p_falls_back_to_p() -> None:
    p_V = np.array([0.3, 0.7])
    assert residual(p_V, p_V).tolist() == p_V.tolist()
    assert residual(p_V, np.array([0.4, 0.6])).tolist() == [0.0, 1.0]


# --- rounds on the toy model


def rounds(params: list[SamplingParams], mask_of=lambda s, tokens: None, num_rounds: int = 10, seed: int = 0):
    """Texts decoded with up to four drafts a round, some proposed for certain; (sampler, texts, drafts accepted, checked)."""
    requests, rng = requests_for(params), np.random.default_rng(seed)
    sampler = new_sampler(requests)
    verifier, texts = RejectionVerifier(sampler), [Text(request.prompt_ids.tolist()) for request in requests]
    accepted = checked = 0
    for r in range(num_rounds):
        propose = (lambda tokens: int(logits_after(tokens).argmax())) if r % 3 == 2 else None
        drafts = draft(verifier, texts, 4, mask_of, propose=propose)
        lengths = np.minimum(rng.integers(0, 5, len(texts)), num_usable(drafts))
        verified = verify(verifier, texts, drafts, lengths, mask_of)
        assert not verified.failed.any()
        accepted, checked = accepted + int((verified.counts - 1).sum()), checked + int(lengths.sum())
    return sampler, texts, accepted, checked


@pytest.mark.parametrize("masked", [False, True])
def test_greedy_texts_are_plain_ones(masked: bool) -> None:
    def mask_of(s: int, tokens: list[int]) -> np.ndarray | None:
        return random_mask(tokens) if masked else None

    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, frequency_penalty=1.5, min_tokens=8, logprobs=2, logprobs_mode="processed"),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, bad_words=("c", "gh"), logprobs=1),
    ]
    sampler, texts, accepted, checked = rounds(params, mask_of)
    _, expected = plain(requests_for(params), 50, mask_of)
    assert 0 < accepted < checked
    for s, (text, whole) in enumerate(zip(texts, expected)):
        assert text.tokens == whole.tokens[: len(text.tokens)]
        assert all(same_logprobs(a, b) for a, b in zip(text.logprobs, whole.logprobs))
        assert history_of(sampler, s, len(text.tokens)) == history_of_text(params, s, text.tokens)


DRAWN = [
    SamplingParams(logprobs=3),
    SamplingParams(top_p=0.8, temperature=1.4, logprobs=0, logprobs_mode="processed"),
    SamplingParams(
        frequency_penalty=1.0, repetition_penalty=1.3, bad_words=("c",), logprobs=1, logprobs_mode="processed"
    ),
    SamplingParams(presence_penalty=1.0, top_k=9, logprobs=1),
]


def history_of_text(params: list[SamplingParams], slot: int, tokens: list[int]) -> tuple | None:
    sampler = new_sampler(requests_for(params))
    sampler.record(slot, 3, tokens[3:])
    return history_of(sampler, slot, len(tokens))


def test_drawn_tokens_leave_the_history_of_their_text_and_have_its_logprobs() -> None:
    """The same text, forced upon a plain sampler position by position, gives the same log probabilities bit for bit."""
    sampler, texts, accepted, checked = rounds(DRAWN, num_rounds=12)
    assert 0 < accepted < checked
    for s, text in enumerate(texts):
        assert history_of(sampler, s, len(text.tokens)) == history_of_text(DRAWN, s, text.tokens)
        forced = new_sampler(requests_for(DRAWN))
        for position in range(3, len(text.tokens)):
            where = np.zeros(1, np.int64), np.array([s]), np.array([position]), {}
            row = forced.rows(logits_after(text.tokens[:position])[None])
            (expected,) = row.logprobs(*where, np.array(text.tokens[position : position + 1])).values()
            assert same_logprobs(text.logprobs[position - 3], expected)
            forced.record(s, position, text.tokens[position : position + 1])


def test_the_same_seed_gives_the_same_text_whatever_the_neighbours() -> None:
    requests = requests_for(DRAWN)

    def run(chosen: list[Request]) -> dict[int, list[int]]:
        sampler = new_sampler(chosen)
        verifier, texts = RejectionVerifier(sampler), [Text(request.prompt_ids.tolist()) for request in chosen]
        for _ in range(8):
            drafts = draft(verifier, texts, 3)
            verify(verifier, texts, drafts, np.full(len(texts), 3))
        return {request.request_id: text.tokens for request, text in zip(chosen, texts)}

    together = run(requests)
    assert run(requests[::-1]) == together
    for request in requests:
        assert run([request])[request.request_id] == together[request.request_id]
    other = run([Request(0, requests[0].prompt_ids, DRAWN[0], seed=99)])
    assert other[0] != together[0]


def test_a_certain_proposal_is_taken_as_often_as_the_target_would() -> None:
    params = [SamplingParams()] * 3000
    verifier = RejectionVerifier(new_sampler(requests_for(params)))
    texts = [Text([3, 4, 3]) for _ in params]
    p_V = np.exp(logits_after([3, 4, 3]).astype(np.float64))
    p_V /= p_V.sum()
    best = int(p_V.argmax())
    logits = {3: logits_after([3, 4, 3]), 4: logits_after([])}
    drafts = draft(verifier, texts, 1, propose=lambda tokens: best)
    verified = verify(verifier, texts, drafts, np.ones(3000, np.int64), target=lambda tokens: logits[len(tokens)])
    rate, sigma = (verified.counts == 2).mean(), np.sqrt(p_V[best] * (1 - p_V[best]) / 3000)
    assert abs(rate - p_V[best]) < 3 * sigma
    firsts = verified.token_ids[np.cumsum(verified.counts) - verified.counts]
    assert (firsts[verified.counts == 1] != best).all()  # what is rejected cannot come back


def test_drafts_that_were_not_chosen_here_are_no_drafts() -> None:
    texts = [Text([3, 4, 3])]
    verifier = RejectionVerifier(new_sampler(requests_for([SamplingParams()])))
    drafts = draft(verifier, texts, 1)
    with pytest.raises(AssertionError, match="not chosen here"):
        verify(verifier, texts, (drafts + 1) % V, np.ones(1, np.int64))
