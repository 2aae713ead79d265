"""Drafts that are looked up in a sequence's own text."""

import numpy as np
import pytest

from deepinfer.speculation.ngram import Ngram

PAD = 3


def as_proposed(number: int, logits: None, *, proposed_S: np.ndarray) -> np.ndarray:
    assert logits is None
    return proposed_S


def looked_up(texts: list[list[int]], drafter: Ngram, choose=as_proposed) -> tuple[list[list[int]], np.ndarray]:  # type: ignore[no-untyped-def]
    """Drafts of sequences in slots n - 1 … 0, without what is unused; and the confidences."""
    tokens_NL = np.full((len(texts), PAD + max(map(len, texts)) + 4), -1, np.int32)
    slots = np.arange(len(texts))[::-1].copy()
    for slot, text in zip(slots, texts):
        tokens_NL[slot, PAD : PAD + len(text)] = text
    drafts = drafter.draft(slots, tokens_NL, np.array([len(text) for text in texts]), PAD, choose)
    assert drafts.token_ids.shape == drafts.confidence.shape == (len(texts), drafter.depth)
    assert ((drafts.token_ids >= 0) == (drafts.confidence > 0)).all()
    return [[token for token in row if token >= 0] for row in drafts.token_ids.tolist()], drafts.confidence


def by_hand(text: list[int], least: int, most: int, depth: int) -> list[int]:
    """The rule in words: longest match first, newest first, and periods go on."""
    for length in range(most, least - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                longer = list(text)
                for k in range(depth):
                    longer.append(longer[end + k])
                return longer[len(text) :]
    return []


def test_what_followed_the_longest_match_is_proposed() -> None:
    drafter = Ngram(depth=3, min_match=1, max_match=4)
    text = [7, 1, 2, 3, 50, 51, 52, 9, 2, 3, 60, 61, 62, 8, 3, 70, 71, 72, 7, 1, 2, 3]
    assert looked_up([text], drafter)[0] == [[50, 51, 52]]
    assert looked_up([text[7:]], drafter)[0] == [[60, 61, 62]]
    assert looked_up([text[13:]], drafter)[0] == [[70, 71, 72]]


def test_of_equally_long_matches_the_newest_counts() -> None:
    assert looked_up([[1, 2, 50, 1, 2, 60, 1, 2]], Ngram(depth=1, min_match=2, max_match=4))[0] == [[60]]


def test_a_short_match_is_none() -> None:
    text = [1, 2, 50, 9, 2]
    assert looked_up([text], Ngram(depth=1, min_match=2, max_match=4))[0] == [[]]
    assert looked_up([text], Ngram(depth=1, min_match=1, max_match=4))[0] == [[50]]


def test_a_period_goes_on() -> None:
    assert looked_up([[5, 1, 2, 1, 2, 1]], Ngram(depth=5, min_match=2, max_match=3))[0] == [[2, 1, 2, 1, 2]]
    assert looked_up([[4, 4]], Ngram(depth=3, min_match=1, max_match=3))[0] == [[4, 4, 4]]


def test_a_sequence_of_one_token_has_no_match() -> None:
    assert looked_up([[4]], Ngram(depth=3, min_match=1, max_match=3))[0] == [[]]


def test_random_texts_equal_the_rule_in_words() -> None:
    random = np.random.default_rng(3)
    for _ in range(60):
        least = int(random.integers(1, 4))
        most, depth = least + int(random.integers(0, 4)), int(random.integers(1, 7))
        texts = [random.integers(0, random.integers(2, 60), random.integers(1, 300)).tolist() for _ in range(5)]
        found, _ = looked_up(texts, Ngram(depth=depth, min_match=least, max_match=most))
        assert found == [by_hand(text, least, most, depth) for text in texts]


def test_a_match_across_strips_and_far_back_is_found() -> None:
    middle = list(range(100, 100 + 1000))
    assert looked_up([[1, 2, 3, 77, *middle, 1, 2, 3]], Ngram(depth=2, min_match=3, max_match=3))[0] == [[77, 100]]


def test_padding_is_no_text() -> None:
    assert looked_up([[5, 6, 5]], Ngram(depth=1, min_match=2, max_match=4))[0] == [[]]


def test_longer_matches_are_trusted_more() -> None:
    texts = [[1, 2, 3, 50, 9, 3], [1, 2, 3, 50, 2, 3], [1, 2, 3, 50, 1, 2, 3]]
    _, confidence = looked_up(texts, Ngram(depth=1, min_match=1, max_match=3))
    assert confidence[:, 0].tolist() == pytest.approx([1 / 2, 2 / 3, 3 / 4])


def test_g08_what_is_refused_ends_the_proposals_of_its_sequence_alone() -> None:
    asked: list[list[int]] = []

    def choose(number: int, logits: None, *, proposed_S: np.ndarray) -> np.ndarray:
        asked.append(proposed_S.tolist())
        return np.where(proposed_S == 3, -1, proposed_S)

    texts = [[1, 2, 3, 4, 5, 9, 1], [1, 6, 7, 8, 5, 9, 1], [1, 2]]
    found, _ = looked_up(texts, Ngram(depth=4, min_match=1, max_match=3), choose)
    assert found == [[2], [6, 7, 8, 5], []]
    assert asked == [[2, 6, -1], [3, 7, -1], [-1, 8, -1], [-1, 5, -1]]


def test_lengths_that_no_match_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"speculation\.min_match=5.*speculation\.max_match=4"):
        Ngram(depth=4, min_match=5, max_match=4)
