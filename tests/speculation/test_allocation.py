"""Who gets the places of a budget: against brute force, and the properties that keep the output's law."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.speculation.allocation import allocate, survival

CHANCES = st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0, float("nan"), float("inf"), -1.0, 2.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    sequences, depth = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    chances = draw(st.lists(CHANCES | st.floats(0, 1), min_size=sequences * depth, max_size=sequences * depth))
    available = draw(st.lists(st.integers(0, depth), min_size=sequences, max_size=sequences))
    budget = draw(st.integers(0, sequences * depth + 2))
    return np.array(chances, dtype=np.float32).reshape(sequences, depth), np.array(available), budget


def by_sorting(confidence_DK: np.ndarray, available_D: np.ndarray, budget: int) -> np.ndarray:
    """Hand places out one by one: the highest survival, then the shallowest place, then the lowest sequence."""
    places = []
    for sequence, row in enumerate(confidence_DK):
        chance = np.float32(1)
        for depth in range(available_D[sequence]):
            certain = np.float32(0) if np.isnan(row[depth]) else np.clip(row[depth], 0, 1)
            chance = chance * certain
            places.append((-chance, depth, sequence))
    lengths = np.zeros(len(available_D), dtype=np.int64)
    for _, depth, sequence in sorted(places)[:budget]:
        assert lengths[sequence] == depth, "not a prefix"
        lengths[sequence] += 1
    return lengths


@given(cases())
def test_as_by_sorting(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    np.testing.assert_array_equal(allocate(*case), by_sorting(*case))


@given(cases())
def test_exactly_the_budget_is_handed_out(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    confidence_DK, available_D, budget = case
    lengths = allocate(confidence_DK, available_D, budget)
    assert lengths.dtype == np.int64 and lengths.sum() == min(budget, available_D.sum())
    assert ((lengths >= 0) & (lengths <= available_D)).all()


def test_no_other_lengths_let_more_drafts_survive() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        chances = rng.random((3, 3), dtype=np.float32)
        alive = np.concatenate([np.zeros((3, 1)), survival(chances).cumsum(axis=1, dtype=np.float64)], axis=1)
        for budget in range(10):
            best = max(
                sum(alive[sequence, length] for sequence, length in enumerate(lengths))
                for lengths in itertools.product(range(4), repeat=3)
                if sum(lengths) == budget
            )
            chosen = allocate(chances, np.full(3, 3), budget)
            assert alive[np.arange(3), chosen].sum() == pytest.approx(best, abs=1e-6)


@given(cases(), st.data())
def test_what_comes_later_in_a_sequence_changes_nothing(
    case: tuple[np.ndarray, np.ndarray, int], data: st.DataObject
) -> None:
    """Whether (r, k) is checked does not depend on confidences of r behind k: they are known after draft k only."""
    confidence_DK, available_D, budget = case
    sequences, depth = confidence_DK.shape
    sequence, place = data.draw(st.integers(0, sequences - 1)), data.draw(st.integers(0, depth - 1))
    changed = confidence_DK.copy()
    changed[sequence, place + 1 :] = data.draw(st.sampled_from([0.0, 0.3, 1.0, float("nan")]))
    before, after = (allocate(of, available_D, budget)[sequence] for of in (confidence_DK, changed))
    assert (before > place) == (after > place)


def test_nan_never_wins() -> None:
    chances = np.array([[np.nan, 0.9], [0.1, 0.1], [0.2, np.nan]], dtype=np.float32)
    np.testing.assert_array_equal(allocate(chances, np.full(3, 2), 3), [0, 2, 1])
    np.testing.assert_array_equal(allocate(np.full((8, 5), np.nan, np.float32), np.full(8, 5), 20).sum(), 20)


def test_equal_sequences_share_evenly() -> None:
    np.testing.assert_array_equal(allocate(np.ones((8, 5), np.float32), np.full(8, 5), 12), [2, 2, 2, 2, 1, 1, 1, 1])


def test_places_without_a_draft_are_not_handed_out() -> None:
    chances = np.array([[1, 1, 1], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_array_equal(allocate(chances, np.array([1, 3]), 3), [1, 2])
    np.testing.assert_array_equal(allocate(chances, np.array([1, 3]), 9), [1, 3])


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0, 0)])
def test_nothing_to_hand_out(shape: tuple[int, int]) -> None:
    lengths = allocate(np.zeros(shape, np.float32), np.zeros(shape[0], np.int64), 3)
    assert lengths.shape == shape[:1] and not lengths.any()


@given(cases())
def test_survival_falls_and_is_finite(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    chances = survival(case[0])
    assert np.isfinite(chances).all() and ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances, axis=1) <= 0).all()
