"""Measuring at start-up: what is run, and how near the curve comes to the machine."""

import numpy as np
import pytest

from deepinfer.speculation.curve_measurement import first_counts, first_sizes, measure_curve, powers, shortest


class Machine:
    """Steps in tiles of rows, with a cost of sampling and of drafting per sequence, and noise."""

    def __init__(self, tile: int, noise: float = 0.0, slope_s: float = 0.01) -> None:
        self.tile, self.noise, self.slope_s = tile, noise, slope_s
        self.rng, self.asked = np.random.default_rng(0), []  # type: ignore[var-annotated]

    def step_s(self, rows: int, sequences: int, draft: bool) -> float:
        tiles = -(-rows // self.tile)
        return 8.0 + tiles * self.tile * self.slope_s + sequences * 0.002 + draft * (0.5 + sequences * 0.001)

    def __call__(self, rows: int, sequences: int, draft: bool) -> float:
        assert sequences in (0, rows) and (sequences or not draft)
        self.asked.append((rows, sequences, draft))
        return self.step_s(rows, sequences, draft) * (1 + self.noise * self.rng.standard_normal())


@pytest.mark.parametrize("tile", [1, 8, 32, 64, 48])
def test_the_curve_is_near_the_machine(tile: int) -> None:
    machine = Machine(tile, slope_s=0.05)
    curve = measure_curve(machine, most_rows=1536, most_sequences=256, most_s=1e9)
    rows = np.arange(1, 1537)
    true_s = np.array([machine.step_s(row, 100, True) for row in rows.tolist()])
    error = np.abs(curve.predict(rows, 100) - true_s) / true_s
    assert error.mean() < 0.01 and error.max() < 0.1
    assert len({row for row, sequences, _ in machine.asked if not sequences}) <= 80, "start-up takes too long"


def test_the_first_steps_of_a_staircase_are_found_exactly() -> None:
    curve = measure_curve(Machine(32, slope_s=0.1), most_rows=192, most_sequences=32, most_s=1e9)
    at = np.arange(1, 193)
    np.testing.assert_array_equal(at[:-1][np.diff(curve.predict(at, 8)) > 1], [32, 64, 96, 128, 160])


def test_noise_does_not_start_a_search() -> None:
    machine = Machine(4096, noise=0.005)
    curve = measure_curve(machine, most_rows=1536, most_sequences=256, most_s=1e9)
    assert {row for row, _, _ in machine.asked} == set(first_sizes(1536))
    assert (np.diff(curve.predict(np.arange(1, 1537), 8)) >= 0).all()


def test_a_slow_machine_is_not_searched_for_long() -> None:
    machine = Machine(32, slope_s=0.1)
    measure_curve(machine, most_rows=192, most_sequences=32, most_s=100.0)
    assert {row for row, sequences, _ in machine.asked if not sequences} == set(powers(192))


def test_given_sizes_are_the_only_ones_and_flat_up_to_each() -> None:
    machine = Machine(1)
    curve = measure_curve(machine, most_rows=48, most_sequences=8, sizes=(1, 2, 4, 8, 16, 24, 48))
    assert {row for row, sequences, _ in machine.asked if not sequences} == {1, 2, 4, 8, 16, 24, 48}
    assert curve.predict(17, 1) == curve.predict(24, 1) < curve.predict(25, 1)


@pytest.mark.parametrize(
    "times",
    [[0.009, 1.0, 2.0, 0.002, 3.0, 1.0], [0.05, 0.04, 2.0], [0.9, 0.5], [0.5, 0.9]],
    ids=["fast", "slow, seldom", "very slow, once more", "the first counts too"],
)
def test_strays_do_not_count(times: list[float]) -> None:
    left = iter(times)
    assert shortest(lambda *_: next(left), 4, 0, False) == min(times)
    assert next(left, None) is None


def test_the_smallest_engine() -> None:
    curve = measure_curve(Machine(8), most_rows=1, most_sequences=1)
    assert curve.rows.tolist() == curve.sequences.tolist() == [1]


def test_who_waits_hears_how_far_it_is() -> None:
    heard: list[tuple[int, int]] = []
    measure_curve(Machine(8), most_rows=48, most_sequences=8, report=lambda done, most: heard.append((done, most)))
    done, most = zip(*heard)
    assert list(done) == list(range(1, len(done) + 1)) and len(set(most)) == 1 and done[-1] <= most[0]


def test_numbers_of_sequences_are_few() -> None:
    assert first_counts(1) == [1] and first_counts(4) == [1, 4] and first_counts(5) == [1, 4, 5]
    assert first_counts(256) == [1, 4, 16, 64, 256]
