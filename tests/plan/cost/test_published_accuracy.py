"""The accuracy page says what the script says now, and the fitted parameter is the one in the configuration."""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.specs import Spec

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "benchmarks"))  # benchmarks are no package

import cost_accuracy  # noqa: E402
from published.cpu import FITTED, CpuSteps, fit_cpu, measured_steps_s  # noqa: E402
from published.predict import predict, read_points  # noqa: E402


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


def test_the_forecast_is_as_good_as_the_page_says(share: float) -> None:
    """What may be told of it: held-out published figures are met within a quarter on average, and in their order."""
    rows = [row for row in cost_accuracy.rows_of(read_points(), share) if not row.point.fit and not row.point.unfit]
    public = [row for row in rows if row.point.status == "published"]
    assert len(public) >= 13 and len(rows) >= 16
    assert cost_accuracy.mape(public) <= 25
    assert cost_accuracy.rank_correlation(public) >= 0.9


def test_one_forecast_by_hand() -> None:
    """V3 decode of 256 sequences on each of 72 H100, experts over all of them: the network holds the step up.

    288 expert slots, four on each rank; a row of eight experts is sent to every other rank that has one of them, with
    7,392 bytes there and 14,336 back in each of 58 layers. 64 of the 71 other ranks are beyond NVLink, over 50 GB/s of
    which 86 % are reached. 61 layers wait 101.3 µs each; both ways over both links begin 58 times, 12.2 µs each.
    """
    other_ranks = 71 * (1 - math.comb(284, 8) / math.comb(288, 8))
    sent_bytes = 256 * other_ranks * 64 / 71 * (7392 + 14336) * 58
    links_s, waits_s = sent_bytes / (50e9 * 0.86), 61 * 101.3e-6 + 58 * 2 * 2 * 12.2e-6
    assert (round(links_s * 1e3, 1), round(waits_s * 1e3, 2)) == (51.4, 9.01)
    step_s = (links_s + waits_s) / 0.578
    point = next(point for point in read_points() if point.name == "V3 decode 2K, SGLang")
    assert predict(point, 0.578) == pytest.approx(256 / step_s) == pytest.approx(2448, abs=0.5)


def test_the_two_values_of_a_cpu_are_solved_from_the_tracked_steps(spec_of: Callable[..., Spec]) -> None:
    """What 31 more sequences add gives the share of f32, the rest of the step of one the latency; the page says the same."""
    own, fit = spec_of("cost=calibrated").cost.architectures["cpu"], fit_cpu()
    assert own.flops["f32"].value == pytest.approx(fit.f32, abs=6e-4)
    assert own.layer_latency_s.value == pytest.approx(fit.layer_latency_s, rel=0.05)
    predicted, measured = CpuSteps().seconds(fit), measured_steps_s()
    assert {count: predicted[count] for count in FITTED} == pytest.approx({count: measured[count] for count in FITTED})
    (apart,) = set(measured) - set(FITTED)
    assert predicted[apart] == pytest.approx(measured[apart], rel=0.15)
    shown = cost_accuracy.between(cost_accuracy.DOCS.read_text(), cost_accuracy.CPU_BEGIN, cost_accuracy.CPU_END)
    assert shown == cost_accuracy.cpu_report(), "out of date; type: python benchmarks/cost_accuracy.py --write"
