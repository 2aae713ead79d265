"""What coupled and rejection verification have in common: tokens in order, faults, masks, drafts and proposals."""

import numpy as np
import pytest
from toy_rounds import (
    EOS,
    Text,
    V,
    draft,
    draft_logits_after,
    logits_after,
    new_sampler,
    one_round,
    packed,
    peaks,
    requests_for,
    same_logprobs,
    verify,
)

from deepinfer.interfaces import SamplingParams, Verified, VerifyRows
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(params=[CoupledVerifier, RejectionVerifier])
def kind(request: pytest.FixtureRequest) -> type:
    return request.param


def test_accepted_drafts_then_the_correction_or_the_bonus(kind) -> None:
    logits = peaks(5, 6, 7)
    for drafts, expected in [([5, 6], [5, 6, 7]), ([5, 9], [5, 6]), ([9, 6], [5])]:
        verified = one_round(kind, GREEDY, logits, drafts)
        assert verified.token_ids.tolist() == expected and verified.counts.tolist() == [len(expected)]
        assert not verified.failed.any() and verified.failures == {}


def test_a_single_row_is_a_plain_sample_and_no_sequences_give_nothing(kind) -> None:
    requests = requests_for([SamplingParams(), GREEDY, SamplingParams(top_p=0.9, logprobs=2)])
    verifier = kind(new_sampler(requests))
    logits = np.stack([logits_after([i]) for i in range(3)])
    rows = VerifyRows(np.arange(3), np.full(3, 3), np.arange(4), np.zeros((3, 0), np.int64))
    verified = verifier.verify(logits, rows)
    expected = new_sampler(requests).sample(logits, np.arange(3), np.full(3, 3))
    assert np.array_equal(verified.token_ids, expected.token_ids) and verified.counts.tolist() == [1, 1, 1]
    assert list(verified.logprobs) == [2] and same_logprobs(verified.logprobs[2], expected.logprobs[2])
    nothing = verifier.verify(logits[:0], VerifyRows(*(np.zeros(0, np.int64),) * 2, np.zeros(1, np.int64), logits[:0]))
    assert len(nothing.token_ids) == len(nothing.counts) == len(nothing.failed) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(seed=1, temperature=0.01), SamplingParams(top_k=1, logprobs=1)]
)
def test_a_broken_row_fails_its_sequence_after_the_tokens_before_it(kind, bad: float, params: SamplingParams) -> None:
    for broken in range(4):
        logits = peaks(5, 6, 7, 8)
        logits[broken] = np.where(np.arange(V) == 2, bad, logits[broken]) if bad != -np.inf else bad
        verified = one_round(kind, params, logits, [5, 6, 7])
        assert verified.token_ids.tolist() == [5, 6, 7, 8][:broken] and verified.counts.tolist() == [broken]
        assert verified.failed.tolist() == [True] and "logits of this position" in verified.failures[0]
    logits = peaks(5, 6, 7, 8)
    logits[3] = bad  # behind a wrong draft: nobody looks
    verified = one_round(kind, params, logits, [5, 9, 7])
    assert verified.token_ids.tolist() == [5, 6] and not verified.failed.any()


def test_a_failing_neighbour_changes_nothing(kind) -> None:
    requests = requests_for([SamplingParams(logprobs=1), GREEDY, SamplingParams()])
    logits, drafts = np.concatenate([peaks(5, 6), peaks(7, 8), peaks(9, 10)]), np.array([[5], [7], [9]])

    def run(logits: np.ndarray) -> Verified:
        verifier, slots, positions = kind(new_sampler(requests)), np.arange(3), np.full(3, 3)
        verifier.choose(slots, positions, 0, None, {}, proposed_S=drafts[:, 0])
        return verifier.verify(logits, VerifyRows(slots, positions, np.array([0, 2, 4, 6]), drafts))

    whole = run(logits)
    broken = logits.copy()
    broken[2, 4] = np.nan
    verified = run(broken)
    assert verified.counts.tolist() == [whole.counts[0], 0, whole.counts[2]] and verified.failed.tolist() == [0, 1, 0]
    kept = np.repeat([True, False, True], whole.counts)
    assert verified.token_ids.tolist() == whole.token_ids[kept].tolist() and list(verified.failures) == [1]


def test_everything_ruled_out_fails_with_the_grammars_reason(kind) -> None:
    masks = {0: np.stack([packed([5]), packed([])])}
    verified = one_round(kind, GREEDY, peaks(5, 6), [5], masks)
    assert verified.token_ids.tolist() == [5] and verified.failed[0] and "grammar" in verified.failures[0]


def test_missing_masks_cut_where_the_next_draft_is_illegal(kind) -> None:
    masks = {0: np.stack([packed([5, 6]), packed([10, 11])])}  # 6 is illegal in the second row
    verified = one_round(kind, GREEDY, peaks(5, 6, 7), [5, 6], masks)
    assert verified.token_ids.tolist() == [5, 10] and not verified.failed.any()


def test_broken_draft_logits_give_no_draft_and_fail_nobody(kind) -> None:
    requests = requests_for([GREEDY, SamplingParams(presence_penalty=0.5), SamplingParams()])
    verifier = kind(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]

    def drafter(tokens: list[int]) -> np.ndarray:
        logits = draft_logits_after(tokens)
        return logits * np.float32(np.nan) if len(tokens) == 4 else logits

    drafts = draft(verifier, texts, 3, drafter=drafter)
    assert (drafts[:, 0] >= 0).all() and (drafts[:, 1:] == -1).all()
    verified = verify(verifier, texts, drafts, np.ones(3, np.int64))
    assert (verified.counts >= 1).all() and not verified.failed.any()


def test_drafts_are_legal_and_proposals_are_cut_where_they_are_not(kind) -> None:
    requests = requests_for([SamplingParams(temperature=3.0), GREEDY])
    verifier = kind(new_sampler(requests))
    texts = [Text(request.prompt_ids.tolist()) for request in requests]
    drafts = draft(verifier, texts, 5, mask_of=lambda s, tokens: packed([4, 35]))
    assert set(drafts.ravel().tolist()) <= {4, 35}
    wanted = {3: 35, 4: 4, 5: 36, 6: 4}  # position → proposal; 36 is illegal, and nothing may follow it
    proposed = draft(
        verifier, texts, 4, mask_of=lambda s, tokens: packed([4, 35]), propose=lambda tokens: wanted[len(tokens)]
    )
    assert proposed.tolist() == [[35, 4, -1, -1]] * 2


def test_draft_logits_are_edited_like_the_targets(kind) -> None:
    """Bad words, minimum length and penalties hold for drafts, and see the drafts before them."""
    params = SamplingParams(temperature=0.0, bad_words=("f",), min_tokens=2, presence_penalty=2.0)
    verifier = kind(new_sampler(requests_for([params])))
    logits = np.zeros(V, np.float32)
    logits[[5, EOS, 20, 21]] = [9, 8, 7, 6]  # "f", the end, two others
    drafts = draft(verifier, [Text([3, 4, 3])], 3, drafter=lambda tokens: logits)
    assert drafts.tolist() == [[20, 21, EOS]]
