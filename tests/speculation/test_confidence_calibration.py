"""Confidences that mean what they say: the file beside a checkpoint, and how its numbers are fitted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepinfer.speculation.calibration import FILE, Calibration, read_calibration
from deepinfer.speculation.calibration_fit import (
    bootstrap_interval,
    calibration_error,
    error_floor,
    fit_block,
    fit_position,
    sigmoid,
    survival,
)

BLOCK = 3


def fit(verify: str, temperature: float, scale: float, offset: float) -> dict[str, Any]:
    return {"verify": verify, "temperature": temperature, "scale": [scale] * BLOCK, "offset": [offset] * BLOCK}


SHORT = fit("coupled", 0, 1, 1) | {"offset": [1]}


def written(folder: Path, content: object) -> Path:
    (folder / FILE).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def good(**changes: object) -> dict[str, Any]:
    fits = [fit("coupled", 1.0, 1.5, 0.5), fit("coupled", 0.0, 2.0, -1.0), fit("rejection", 1.0, 1.0, 3.0)]
    return {"format": 1, "fits": fits} | changes


def chances(calibration: Calibration, logit: float, *temperatures: float) -> list[float]:
    logits_SK = np.full((len(temperatures), BLOCK), logit)
    return calibration(logits_SK, np.array(temperatures))[:, 0].tolist()


def test_each_request_is_served_by_the_nearest_temperature_of_its_way_to_verify(tmp_path: Path) -> None:
    calibration = read_calibration(written(tmp_path, good()), "coupled", BLOCK)
    assert calibration.notice == ""
    cold, warm = sigmoid(np.array([2.0 * 0.7 - 1.0, 1.5 * 0.7 + 0.5])).tolist()
    assert chances(calibration, 0.7, 0.0, 0.4, 0.5, 0.6, 1.0, 5.0) == pytest.approx([cold] * 3 + [warm] * 3, rel=1e-6)
    other = read_calibration(tmp_path, "rejection", BLOCK)
    assert chances(other, 0.7, 0.0) == pytest.approx([float(sigmoid(np.array(3.7)))], rel=1e-6)


def test_each_position_has_its_own_numbers(tmp_path: Path) -> None:
    numbers = {"verify": "coupled", "temperature": 1, "scale": [1, 2, 0], "offset": [0, 1, -1]}
    calibration = read_calibration(written(tmp_path, good(fits=[numbers])), "coupled", BLOCK)
    found = calibration(np.full((1, 3), 0.5), np.ones(1))
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(sigmoid(np.array([0.5, 2.0, -1.0])), rel=1e-6)
    assert np.array_equal(calibration(np.full((1, 2), 0.5), np.ones(1)), found[:, :2])  # a depth below the block


@pytest.mark.parametrize("logit", [np.nan, np.inf, -np.inf, 1e9, -1e9, 0.0])
def test_a_chance_is_a_number_between_0_and_1(logit: float) -> None:
    (chance,) = chances(Calibration((), BLOCK), logit, 1.0)
    assert chance == {np.inf: 1, 1e9: 1, 0.0: 0.5}.get(logit, 0)


def test_without_a_file_or_a_fit_confidences_stay_as_they_are_and_it_is_said(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        calibration = read_calibration(folder, "coupled", BLOCK)
        assert FILE in calibration.notice and (folder is None or str(folder) in calibration.notice)
        assert chances(calibration, 0.7, 0.3) == pytest.approx([float(sigmoid(np.array(0.7)))], rel=1e-6)
    calibration = read_calibration(written(tmp_path, good(fits=[fit("coupled", 1, 3, 3)])), "rejection", BLOCK)
    assert "no fit for speculation.verify=rejection" in calibration.notice
    assert chances(calibration, 0.7, 1.0) == pytest.approx([float(sigmoid(np.array(0.7)))], rel=1e-6)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("{", "truncated"),
        ("nothing", "malformed"),
        ("[]", "array"),
        ({"fits": []}, "format"),
        (good(format=2), r"format 2 .* reads 1: at `\$\.format`"),
        (good(fits=[fit("coupled", 1, 1, 1) | {"scale": [1, "x", 1]}]), r"\$\.fits\[0\]\.scale\[1\]"),
        (good(fits=[fit("coupled", 1, 1, 1), SHORT]), r"1 value for blocks of 3: at `\$\.fits\[1\]\.offset"),
        (good(fits=[fit("coupled", -1, 1, 1)]), r"\$\.fits\[0\]\.temperature"),
        (good(fits=[fit("guess", 1, 1, 1)]), r"\$\.fits\[0\]\.verify"),
        (good(fits=[fit("coupled", 1, 1, 1)] * 2), r"temperature 1 is there twice for coupled.*\$\.fits\[0\]\.temperature"),
        (json.dumps(good()).replace("1.5", "NaN"), "malformed"),
        (json.dumps(good()).replace("1.5", "1e999"), "out of range"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name_and_field(tmp_path: Path, content: object, field: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){FILE} cannot be used: .*{field}.*remove it"):
        read_calibration(written(tmp_path, content), "coupled", BLOCK)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ValueError, match=FILE):
        read_calibration(tmp_path, "coupled", BLOCK)


def blocks(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw logits that are too sure and shifted, otherwise at every position, and what was accepted."""
    rng = np.random.default_rng(seed)
    logits_BK = rng.normal(1.0, 2.0, (count, BLOCK))
    chance_BK = sigmoid(logits_BK * [0.5, 1.5, 0.8] + [-0.5, 0.3, 1.0])
    return logits_BK, np.cumprod(rng.random((count, BLOCK)) < chance_BK, axis=1).astype(bool)


def test_the_numbers_that_made_the_data_are_found_again() -> None:
    scale, offset = fit_block(*blocks(40_000, 1))
    assert scale == pytest.approx([0.5, 1.5, 0.8], abs=0.06)
    assert offset == pytest.approx([-0.5, 0.3, 1.0], abs=0.1)


def test_fitted_chances_are_calibrated_on_other_blocks_and_raw_ones_are_not() -> None:
    scale, offset = fit_block(*blocks(40_000, 1))
    logits_BK, accepted_BK = blocks(40_000, 2)
    raw, fitted = survival(sigmoid(logits_BK)), survival(sigmoid(logits_BK * scale + offset))
    for k in range(BLOCK):
        assert calibration_error(raw[:, k], accepted_BK[:, k]) > 0.03
        assert calibration_error(fitted[:, k], accepted_BK[:, k]) < 0.015


def test_a_block_that_ended_counts_up_to_its_end() -> None:
    logits_BK, accepted_BK = blocks(4_000, 3)
    ended_BK, lied_BK = logits_BK.copy(), accepted_BK.copy()
    ended_BK[::2, 2], lied_BK[::2, 2] = np.nan, False
    whole, cut = fit_block(logits_BK, accepted_BK), fit_block(ended_BK, lied_BK)
    assert np.array_equal(whole[0][:2], cut[0][:2])
    assert (
        cut[0][2]
        == fit_position(logits_BK[1::2, 2][accepted_BK[1::2, 1]], accepted_BK[1::2, 2][accepted_BK[1::2, 1]])[0]
    )


@pytest.mark.parametrize("accepted", [0.0, 1.0])
def test_few_blocks_that_agree_give_finite_numbers(accepted: float) -> None:
    scale, offset = fit_position(np.array([4.0, 4.0]), np.full(2, accepted))
    assert np.isfinite([scale, offset]).all()
    assert fit_position(np.zeros(0), np.zeros(0)) == (1.0, 0.0)


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    chance = np.array([0.11, 0.12, 0.91, 0.92])
    accepted = np.array([0.0, 1.0, 1.0, 1.0])
    assert calibration_error(chance, accepted) == pytest.approx((abs(0.23 - 1) + abs(1.83 - 2)) / 4)
    assert calibration_error(np.array([1.0]), np.array([1.0])) == 0


def test_the_interval_holds_the_error_and_drawing_groups_widens_it() -> None:
    rng = np.random.default_rng(5)
    chance_B = np.repeat(rng.random(400), 25)
    shift_B = np.repeat(rng.normal(0, 0.3, 400), 25)
    accepted_B = rng.random(len(chance_B)) < np.clip(chance_B + shift_B, 0, 1)
    error = calibration_error(chance_B, accepted_B)
    low, high = bootstrap_interval(chance_B, accepted_B, np.repeat(np.arange(400), 25), seed=1)
    assert low < error < high
    single = bootstrap_interval(chance_B, accepted_B, np.arange(len(chance_B)), seed=1)
    assert single[1] - single[0] < 0.7 * (high - low)


def test_perfect_chances_show_the_floor_of_few_blocks() -> None:
    chance_B = np.random.default_rng(6).random(1500)
    floor = error_floor(chance_B, seed=2)
    assert 0.015 < floor < 0.06
    assert error_floor(np.tile(chance_B, 100), seed=2, draws=10) < floor / 5
