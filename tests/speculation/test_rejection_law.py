"""The law of verified tokens, end to end over many seeds. Planted faults must be seen."""

import numpy as np
import pytest
from chi_square import p_value

from deepinfer.interfaces import Request, SamplingParams, VerifyRows
from deepinfer.sampling import philox
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier

SIZE = 8
SEEDS = 20_000
RNG = np.random.default_rng(5)
TARGET_UV = RNG.normal(size=(SIZE, SIZE)).astype(np.float32) * 1.5  # logits after token u
DRAFTER_UV = TARGET_UV + RNG.normal(size=(SIZE, SIZE)).astype(np.float32)
PROMPT = np.array([6, 2])
SETTINGS = {
    "plain": {},
    "filters": {"temperature": 0.8, "top_k": 6, "top_p": 0.85},
    "penalties": {"presence_penalty": 1.2, "frequency_penalty": 0.6, "repetition_penalty": 1.5},
}


def softmax(scores_V: np.ndarray) -> np.ndarray:
    weights_V = np.exp(scores_V - scores_V.max())
    return weights_V / weights_V.sum()


def by_the_book(
    text: list[int], temperature=1.0, top_k=SIZE, top_p=1.0, logits_UV=TARGET_UV, **penalties
) -> np.ndarray:
    """The distribution after a text whose first tokens are PROMPT, written without the sampler's own parts."""
    scores_V = logits_UV[text[-1]].astype(np.float64)
    answer = text[len(PROMPT) :]
    for token in set(text) if penalties else ():
        factor = penalties["repetition_penalty"]
        scores_V[token] = scores_V[token] / factor if scores_V[token] > 0 else scores_V[token] * factor
    for token in set(answer) if penalties else ():
        scores_V[token] -= penalties["presence_penalty"] + penalties["frequency_penalty"] * answer.count(token)
    p_V = softmax(scores_V / temperature)
    order = np.argsort(-p_V, kind="stable")
    p_V[order[top_k:]] = 0
    p_V /= p_V.sum()
    p_V[order[np.cumsum(p_V[order]) - p_V[order] >= top_p]] = 0
    return p_V / p_V.sum()


def expected_pairs(**setting) -> np.ndarray:
    """[V * V]: of the answer's first two tokens."""
    first_V = by_the_book(PROMPT.tolist(), **setting)
    rows = [first_V[a] * by_the_book([*PROMPT.tolist(), a], **setting) for a in range(SIZE)]
    return np.concatenate(rows)


def sampler_for(setting: dict, num_seeds: int = SEEDS) -> Sampler:
    sampler = Sampler(SIZE, num_seeds)
    params = SamplingParams(**setting)
    for slot in range(num_seeds):
        sampler.admit(slot, Request(slot, PROMPT, params, slot * 7919 + 3))
    return sampler


def drafted(verifier, slots: np.ndarray, positions: np.ndarray, newest: np.ndarray, depth: int) -> np.ndarray:
    drafts = np.zeros((len(slots), depth), np.int64)
    for number in range(depth):
        drafts[:, number] = verifier.choose(slots, positions + number, number, DRAFTER_UV[newest], {})
        newest = drafts[:, number]
    return drafts


def checked(
    verifier, slots: np.ndarray, positions: np.ndarray, newest: np.ndarray, drafts: np.ndarray, lengths: np.ndarray
):
    """Verify the first `lengths` drafts. Returns (Verified, first token of each, second or -1)."""
    before = np.concatenate([newest[:, None], drafts], axis=1)  # the token that a row follows
    logits = TARGET_UV[before[np.arange(before.shape[1]) <= lengths[:, None]]]
    row_starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    verified = verifier.verify(logits, VerifyRows(slots, positions, row_starts, drafts))
    starts = np.cumsum(verified.counts) - verified.counts
    seconds = np.where(verified.counts > 1, verified.token_ids[np.minimum(starts + 1, len(verified.token_ids) - 1)], -1)
    return verified, verified.token_ids[starts], seconds


def two_tokens(verifier, num_seeds: int = SEEDS) -> np.ndarray:
    """Counts [V * V] of the first two tokens of every seed: a round of two drafts, of which 0, 1 or 2 are checked, then
    another one, drafted anew, where the first gave a single token."""
    slots = np.arange(num_seeds)
    positions, newest = np.full(num_seeds, len(PROMPT)), np.full(num_seeds, PROMPT[-1])
    drafts = drafted(verifier, slots, positions, newest, 2)
    _, first, second = checked(verifier, slots, positions, newest, drafts, slots % 3)
    left = np.flatnonzero(second < 0)
    assert 0.2 * num_seeds < len(left) < 0.9 * num_seeds
    drafts = drafted(verifier, left, positions[left] + 1, first[left], 2)
    _, second[left], _ = checked(verifier, left, positions[left] + 1, first[left], drafts, 1 + left % 2)
    return np.bincount(first * SIZE + second, minlength=SIZE * SIZE)


ONE_BY_ONE = 2_500  # seeds where rows have filters or penalties, unless the suite runs whole
CASES = [
    pytest.param(setting, num_seeds, id=f"{setting}-{num_seeds}", marks=marks)
    for setting in SETTINGS
    for num_seeds, marks in [(ONE_BY_ONE, ()), (SEEDS, () if setting == "plain" else pytest.mark.slow)]
]


@pytest.mark.parametrize(("setting", "num_seeds"), CASES)
@pytest.mark.parametrize("kind", [RejectionVerifier, CoupledVerifier])
def test_first_and_second_token_have_the_targets_law(kind: type, setting: str, num_seeds: int) -> None:
    counts = two_tokens(kind(sampler_for(SETTINGS[setting], num_seeds)), num_seeds)
    assert p_value(counts, expected_pairs(**SETTINGS[setting])) > 1e-3


def test_plain_sampling_as_a_control() -> None:
    sampler, slots = sampler_for({}), np.arange(SEEDS)
    first = sampler.sample(TARGET_UV[np.full(SEEDS, PROMPT[-1])], slots, np.full(SEEDS, 2)).token_ids
    second = sampler.sample(TARGET_UV[first], slots, np.full(SEEDS, 3)).token_ids
    assert p_value(np.bincount(first * SIZE + second, minlength=SIZE * SIZE), expected_pairs()) > 1e-3


def test_a_proposal_without_a_distribution_keeps_the_law() -> None:
    verifier, slots = RejectionVerifier(sampler_for({})), np.arange(SEEDS)
    positions, newest = np.full(SEEDS, 2), np.full(SEEDS, PROMPT[-1])
    proposed = np.full((SEEDS, 1), DRAFTER_UV[PROMPT[-1]].argmax())
    assert (verifier.choose(slots, positions, 0, None, {}, proposed_S=proposed[:, 0]) == proposed[:, 0]).all()
    _, first, _ = checked(verifier, slots, positions, newest, proposed, np.ones(SEEDS, np.int64))
    assert p_value(np.bincount(first, minlength=SIZE), by_the_book(PROMPT.tolist())) > 1e-3


def test_drafts_that_know_no_grammar_keep_the_law_under_it() -> None:
    """Drafted without masks, as on devices; the rows of a sequence end where its draft is illegal."""
    legal = np.array([0, 1, 3, 5])
    mask_W = np.array([sum(1 << int(token) for token in legal)], np.uint32)
    verifier, slots = RejectionVerifier(sampler_for({}, ONE_BY_ONE)), np.arange(ONE_BY_ONE)
    positions, newest = np.full(ONE_BY_ONE, 2), np.full(ONE_BY_ONE, PROMPT[-1])
    drafts = drafted(verifier, slots, positions, newest, 1)
    is_legal = np.isin(drafts[:, 0], legal)
    masks = {s: np.tile(mask_W, (1 + int(fine), 1)) for s, fine in enumerate(is_legal)}
    rows = VerifyRows(slots, positions, 2 * np.arange(ONE_BY_ONE + 1), drafts, masks)
    logits = TARGET_UV[np.stack([newest, drafts[:, 0]], axis=1).ravel()]
    verified = verifier.verify(logits, rows)
    first = verified.token_ids[np.cumsum(verified.counts) - verified.counts]
    p_V = np.where(np.isin(np.arange(SIZE), legal), by_the_book(PROMPT.tolist()), 0.0)
    assert p_value(np.bincount(first, minlength=SIZE), p_V / p_V.sum()) > 1e-3
    assert not is_legal.all() and (verified.counts[~is_legal] == 1).all() and (verified.counts == 2).any()


# --- how much is accepted


@pytest.mark.parametrize(("setting", "num_seeds"), CASES[:4])
@pytest.mark.parametrize("kind", [RejectionVerifier, CoupledVerifier])
def test_acceptance_is_as_the_papers_say(kind: type, setting: str, num_seeds: int) -> None:
    """Rejection: Σ min(p, q), the most that is possible. Coupled: at least (1 - TV) / (1 + TV), and no more than that."""
    p_V, q_V = (by_the_book(PROMPT.tolist(), logits_UV=x, **SETTINGS[setting]) for x in (TARGET_UV, DRAFTER_UV))
    overlap = np.minimum(p_V, q_V).sum()
    verifier, slots = kind(sampler_for(SETTINGS[setting], num_seeds)), np.arange(num_seeds)
    positions, newest = np.full(num_seeds, 2), np.full(num_seeds, PROMPT[-1])
    drafts = drafted(verifier, slots, positions, newest, 1)
    assert p_value(np.bincount(drafts[:, 0], minlength=SIZE), q_V) > 1e-3
    verified, _, _ = checked(verifier, slots, positions, newest, drafts, np.ones(num_seeds, np.int64))
    rate, three_sigma = (verified.counts == 2).mean(), 3 * np.sqrt(overlap * (1 - overlap) / num_seeds)
    assert 0.3 < overlap < 0.95 and rate < overlap + three_sigma
    if kind is RejectionVerifier:
        assert rate > overlap - three_sigma
    else:
        assert rate > overlap / (2 - overlap) - three_sigma  # 1 - TV = overlap


# --- faults that the tests above must see


class OneCoin(Sampler):
    def coins(self, slots, positions):
        return super().coins(slots, np.zeros_like(positions))


class CoinFromTheDraft(Sampler):
    """The coin is the draft's own uniform: stream and counter mixed up."""

    def coins(self, slots, positions):
        seeds = self._params.seed_N[slots]
        return philox.uniform(seeds, positions, np.full(1, 3, np.uint64), philox.DRAFT)


class NoHistory(Sampler):
    def record(self, slot, position, token_ids):
        super().record(slot, position, [0] * len(token_ids))


@pytest.mark.parametrize(
    ("faulty", "setting", "num_seeds"),
    [(OneCoin, "plain", SEEDS), (CoinFromTheDraft, "plain", SEEDS), (NoHistory, "penalties", ONE_BY_ONE)],
)
def test_planted_faults_of_noise_and_history_are_seen(faulty: type, setting: str, num_seeds: int, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "Sampler", faulty)
    counts = two_tokens(RejectionVerifier(sampler_for(SETTINGS[setting], num_seeds)), num_seeds)
    assert p_value(counts, expected_pairs(**SETTINGS[setting])) < 1e-6


def test_a_token_from_p_in_a_rejected_drafts_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.speculation.rejection.residual", lambda p_V, q_V: p_V)
    assert p_value(two_tokens(RejectionVerifier(sampler_for({}))), expected_pairs()) < 1e-6


def test_draft_noise_differs_by_number_and_from_all_other_noise() -> None:
    sampler, slots, positions = sampler_for({}, 3), np.arange(3), np.full(3, 9)
    drawn = [sampler.draft_noise(slots, positions, number) for number in range(6)]
    drawn += [sampler.residual_noise(slots, positions), sampler.draft_noise(slots, positions + 1, 0)]
    drawn.append(philox.gumbel_of(philox.uniform(sampler._params.seed_N[:, None], 9, np.arange(SIZE))))
    assert len({noise.tobytes() for noise in drawn}) == len(drawn)
    assert len(np.unique(np.stack(drawn))) == len(drawn) * 3 * SIZE


@pytest.mark.parametrize("which", ["another number", "another sequence", "the softmax of an argmax"])
def test_planted_faults_of_the_proposal_are_seen(which: str) -> None:
    verifier = RejectionVerifier(sampler_for({}))
    true_remember = verifier._remember

    def remember(slots, positions, drafts_S, q_SV) -> None:
        true_remember(slots, positions, drafts_S, np.roll(q_SV, 1, axis=0) if which == "another sequence" else q_SV)
        if which == "another number":
            for slot in slots.tolist():
                found = verifier._proposals[slot]
                if len(found) == 2:
                    found[0].weights_V, found[1].weights_V = found[1].weights_V, found[0].weights_V

    verifier._remember = remember
    if which == "the softmax of an argmax":
        verifier._sampler.draft_noise = lambda slots, positions, number: np.zeros((len(slots), SIZE))
    assert p_value(two_tokens(verifier), expected_pairs()) < 1e-6
