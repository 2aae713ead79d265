"""What a step is said to cost, from tables and from the steps that ran."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.speculation.cost_curve import WINDOW, CostCurve, rising

ROWS = np.array([1, 2, 4, 8, 16, 32])


def curve_of(forward_s: np.ndarray, *, padded: bool = False) -> CostCurve:
    counts = np.array([1, 8])
    return CostCurve(ROWS, forward_s, counts, np.array([0.1, 0.8]), np.array([0.2, 0.4]), padded=padded)


LINEAR = 1.0 + 0.1 * ROWS


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_rising_is_the_nearest_that_does(values: list[float]) -> None:
    found = rising(np.array(values))
    assert (np.diff(found) >= -1e-12).all() and found.sum() == pytest.approx(sum(values), abs=1e-9)
    np.testing.assert_allclose(rising(found), found, atol=1e-9)
    if (np.diff(values) >= 0).all():
        np.testing.assert_allclose(found, values)


def test_noise_does_not_make_more_rows_cheaper() -> None:
    curve = curve_of(np.array([1.0, 1.1, 1.05, 1.2, 1.1, 1.4]))
    assert (np.diff(curve.predict(np.arange(1, 100), 1)) >= 0).all()


def test_parts_of_a_step_add_up() -> None:
    curve = curve_of(LINEAR)
    assert curve.predict(4, 1, drafted=False) == pytest.approx(1.4 + 0.1)
    assert curve.predict(4, 1) == pytest.approx(1.4 + 0.1 + 0.2)
    assert curve.predict(12, 8) == pytest.approx(2.2 + 0.8 + 0.4)
    np.testing.assert_allclose(curve.predict(np.array([[2, 3], [4, 6]]), 1, drafted=False), [[1.3, 1.4], [1.5, 1.7]])


def test_beyond_the_last_size_it_goes_on() -> None:
    assert curve_of(LINEAR).predict(64, 1, drafted=False) == pytest.approx(1 + 6.4 + 0.1)
    one = CostCurve(np.array([4]), np.array([1.0]), np.array([1]), np.zeros(1), np.zeros(1))
    np.testing.assert_array_equal(one.predict(np.array([1, 4, 99]), 3), [1.0, 1.0, 1.0])


def test_a_device_that_fills_steps_up_pays_the_next_size() -> None:
    curve = curve_of(LINEAR, padded=True)
    np.testing.assert_allclose(curve.predict(np.array([5, 8, 9, 16]), 1, drafted=False) - 0.1, [1.8, 1.8, 2.6, 2.6])
    assert curve.predict(64, 1, drafted=False) == pytest.approx(7.5), "beyond the last there is no size"


def test_longer_contexts_show_in_the_slope() -> None:
    """Each row takes 0.05 s more than at start-up; a few wild steps do not matter."""
    curve, rng = curve_of(LINEAR), np.random.default_rng(0)
    for number in range(400):
        rows, sequences = int(rng.integers(1, 33)), int(rng.integers(1, 9))
        true_s = float(curve_of(LINEAR).predict(rows, sequences)) + 0.05 * rows
        curve.observe(rows, sequences, true_s * (20 if number % 13 == 0 else 1), drafted=True)
    assert curve.slope_s == pytest.approx(0.05, rel=0.1)
    for rows, sequences in ((1, 1), (16, 4), (32, 8), (64, 8)):
        expected = float(curve_of(LINEAR).predict(rows, sequences)) + 0.05 * rows
        assert curve.predict(rows, sequences) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("sizes", [(4, 16), (6,)], ids=["two sizes", "one"])
def test_a_machine_that_others_use_too_does_not_make_rows_dear(sizes: tuple[int, ...]) -> None:
    """Every part takes three times as long: of a row's 0.3 s not a share of what the rest takes more."""
    curve = curve_of(LINEAR)
    for _ in range(40):
        for rows in sizes:
            curve.observe(rows, 2, 3 * float(curve_of(LINEAR).predict(rows, 2)), drafted=True)
    assert curve.predict(17, 2) - curve.predict(16, 2) == pytest.approx(0.3, rel=0.01)
    assert curve.predict(16, 2) == pytest.approx(3 * float(curve_of(LINEAR).predict(16, 2)), rel=0.1)


def test_a_slower_sampler_shows_beside_the_rows() -> None:
    """0.5 s more whatever the rows: also told of numbers of sequences that did not come."""
    curve = curve_of(LINEAR)
    curve.slope_s = 0.0
    for _ in range(9):  # too few of one size for the slope
        curve.observe(8, 4, float(curve_of(LINEAR).predict(8, 4)) + 0.5, drafted=True)
    assert curve.predict(8, 4) == pytest.approx(float(curve_of(LINEAR).predict(8, 4)) + 0.5)
    assert curve.predict(30, 6) == pytest.approx(float(curve_of(LINEAR).predict(30, 6)) + 0.5)
    assert curve.predict(8, 4, drafted=False) == curve_of(LINEAR).predict(8, 4, drafted=False)


def test_steps_faster_than_at_start_are_believed() -> None:
    curve = curve_of(LINEAR)
    for _ in range(40):
        curve.observe(8, 4, 1.0, drafted=True)
    assert curve.slope_s == 0.0 and curve.predict(8, 4) == pytest.approx(1.0)
    assert (curve.predict(np.arange(1, 64), 4) > 0).all()


def test_what_no_longer_happens_is_forgotten() -> None:
    curve = curve_of(LINEAR)
    for _ in range(20):
        curve.observe(32, 1, 50.0, drafted=True)
    assert curve.slope_s > 1
    usual_s = float(curve_of(LINEAR).predict(8, 4))
    for _ in range(WINDOW + 20):
        curve.observe(8, 4, usual_s, drafted=True)
    assert curve.slope_s == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("device_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_ignored(device_s: float) -> None:
    curve = curve_of(LINEAR)
    before = curve.predict(8, 4)
    for _ in range(20):
        curve.observe(8, 4, device_s, drafted=True)
    assert curve.predict(8, 4) == before
