"""The accuracy page says what the script says now, and the fitted parameter is the one in the configuration."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.specs import Spec

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))  # benchmarks are no package

import cost_accuracy  # noqa: E402
from published.predict import read_points  # noqa: E402


@pytest.fixture(scope="module")
def share() -> float:
    return cost_accuracy.fit(read_points())


def test_the_configuration_holds_the_fitted_share(share: float, spec_of: Callable[..., Spec]) -> None:
    assert spec_of("cost=calibrated").cost.system_share.value == pytest.approx(share, abs=5e-4)


def test_the_page_is_what_the_script_prints(share: float) -> None:
    text = cost_accuracy.report(cost_accuracy.rows_of(read_points(), share), share)
    shown = cost_accuracy.between(cost_accuracy.DOCS.read_text(), cost_accuracy.BEGIN, cost_accuracy.END)
    assert shown == text, "out of date; type: python benchmarks/cost_accuracy.py --write"
    counts = [int(n) for n in re.findall(r"\d+", text.partition(".")[0])]
    total, fitted, held, published, press, apart = counts[:6]
    assert total == fitted + held + apart and held == published + press and fitted == 2


def test_the_fleet_example_is_what_its_command_says() -> None:
    page = cost_accuracy.DOCS.read_text()
    shown = cost_accuracy.between(page, cost_accuracy.FLEET_BEGIN, cost_accuracy.FLEET_END)
    assert shown == cost_accuracy.fleet(page), "out of date; type: python benchmarks/cost_accuracy.py --write"
    ranks = dict(re.findall(r"workload\.output_share=([\d.]+): .*; ([\d,]+) ranks", shown))
    counts = [int(ranks[share].replace(",", "")) for share in sorted(ranks, key=float)]
    assert len(counts) >= 3 and counts == sorted(counts)
