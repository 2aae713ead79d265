"""The number of drafts that a step checks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.budget import ConfidenceBudget, best_budget
from deepinfer.speculation.cost_curve import CostCurve

NAN = np.float32("nan")


def curve_of(*forward_s: float, plain_s: float = 0.0, drafting_s: float = 0.0) -> CostCurve:
    """A step of 1, 2, … rows takes so long."""
    rows = np.arange(1, len(forward_s) + 1)
    return CostCurve(rows, np.array(forward_s), np.array([1]), np.array([plain_s]), np.array([drafting_s]))


@st.composite
def searches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    sequences, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    chances = draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1), min_size=sequences * depth, max_size=99)
    )
    costs = st.lists(st.sampled_from([1.0, 2.0]) | st.floats(0.1, 10), min_size=sequences * depth + 1, max_size=99)
    table = np.array(chances[: sequences * depth], np.float32).reshape(sequences, depth)
    return table, np.array(draw(costs)[: sequences * depth + 1])


@given(searches())
def test_as_the_best_of_all_lengths_for_any_cost(search: tuple[np.ndarray, np.ndarray]) -> None:
    """Costs need not even rise: every choice of lengths is tried."""
    conditional, cost_s = search
    survival_RK = np.cumprod(conditional, axis=1, dtype=np.float32)
    sequences, depth = survival_RK.shape
    alive = np.concatenate([np.zeros((sequences, 1)), survival_RK.cumsum(axis=1, dtype=np.float64)], axis=1)
    rate = {
        lengths: (sequences + alive[np.arange(sequences), lengths].sum()) / cost_s[sum(lengths)]
        for lengths in itertools.product(range(depth + 1), repeat=sequences)
    }
    budget = best_budget(survival_RK, cost_s)
    assert max(rate[lengths] for lengths in rate if sum(lengths) == budget) == pytest.approx(
        max(rate.values()), rel=1e-12
    )


def test_of_equal_rates_the_fewest_drafts() -> None:
    assert best_budget(np.array([[1.0, 1.0]]), np.array([1.0, 2.0, 3.0])) == 0
    assert best_budget(np.array([[1.0, 1.0]]), np.array([1.0, 1.0, 1.5])) == 1


def test_prompt_rows_are_paid_in_the_same_step() -> None:
    """One row more tips the step over the edge of a tile, unless other rows have filled it."""
    curve = curve_of(1, 1, 1, 1, 2, 2, 2, 2)
    scheduled = ConfidenceBudget(3, curve)
    confidence = np.full((1, 3), 0.5, np.float32)
    assert [scheduled.budget(confidence, other_rows)[0] for other_rows in range(5)] == [3, 2, 1, 0, 3]


def test_drafting_itself_is_paid() -> None:
    """What a step costs anyway makes drafts cheaper: more of them are worth while."""
    confidence = np.full((1, 3), 0.6, np.float32)
    lean, heavy = (curve_of(1, 2, 3, 4, drafting_s=drafting_s) for drafting_s in (0.0, 9.0))
    assert ConfidenceBudget(3, lean).budget(confidence, 0) == (0, True)
    assert ConfidenceBudget(3, heavy).budget(confidence, 0) == (3, True)


def test_unknown_confidences_count_as_one() -> None:
    scheduled = ConfidenceBudget(2, curve_of(1.0, 1.3, 1.6, 1.9, 2.2, 2.5))
    assert scheduled.budget(np.array([[NAN, NAN], [0.0, 0.0]], np.float32), 0) == (2, True)
    assert scheduled.budget(np.array([[0.0, NAN], [0.0, 0.0]], np.float32), 0) == (0, True)
    assert scheduled.budget(np.full((2, 2), NAN), 0) == (4, True)


def test_without_sequences_nothing_is_checked() -> None:
    assert ConfidenceBudget(5, curve_of(1, 2)).budget(np.zeros((0, 5), np.float32), 100) == (0, True)


def test_a_budget_never_exceeds_what_there_can_be() -> None:
    for scheduled in (ConfidenceBudget(5, curve_of(1, 1)), ConfidenceBudget(5)):
        assert scheduled.budget(np.ones((7, 5), np.float32), 0) == (35, True)


def test_nothing_is_checked_or_drafted_while_it_does_not_pay() -> None:
    scheduled = ConfidenceBudget(2, curve_of(1, 1), BackOff(lambda sequences: 1.0, window=10))
    assert scheduled.budget(np.ones((1, 2), np.float32), 0) == (2, True)
    for _ in range(10):
        scheduled.observe(num_sequences=1, num_rows=3, num_tokens=1, drafted=True, device_s=2.0)
    assert scheduled.budget(np.ones((1, 2), np.float32), 0) == (0, False)


def test_steps_correct_the_curve() -> None:
    curve = curve_of(1, 1, 1, 1)
    scheduled = ConfidenceBudget(3, curve)
    for _ in range(20):
        scheduled.observe(num_sequences=1, num_rows=4, num_tokens=2, drafted=True, device_s=5.0)
    assert curve.predict(4, 1) == pytest.approx(5.0)
