"""How far the cost model is from every published figure: roofline and calibrated, fitted, held out and not comparable.

    python benchmarks/cost_accuracy.py [--write]

One parameter of the table, the system share, is fitted on the points marked `fit` in benchmarks/published/points.yaml: the
geometric mean of published over predicted. Nothing else is fitted to a published figure. The CPU has two values of its own,
solved from our own steps on one: no published figure is of a CPU. `--write` puts the table into docs/costs.md, and what the
plan says to the fleet example there.
"""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from markers import between as between  # the tests of the page read it from here
from markers import put_between
from msgspec import Struct
from published.cpu import fit_cpu, told
from published.predict import Point, predict, read_points
from record import options

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.plan import render
from deepinfer.plan.resolve import resolve

DOCS = Path(__file__).parents[1] / "docs" / "costs.md"
BEGIN, END = "<!-- accuracy: begin -->", "<!-- accuracy: end -->"
FLEET_BEGIN, FLEET_END = "<!-- fleet: begin -->", "<!-- fleet: end -->"
CPU_BEGIN, CPU_END = "<!-- cpu: begin -->", "<!-- cpu: end -->"
FLEET_COMMAND = re.compile(r"^deepinfer plan (.*tokens_per_day.*)$", re.MULTILINE)
HEAD = "| figure | of | published | roofline | calibrated | error |\n|---|---|---|---|---|---|"


class Row(Struct, frozen=True, kw_only=True):
    """One point and what the model says: by the roofline, and calibrated with the fitted share."""

    point: Point
    roofline: float
    calibrated: float

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.calibrated / self.point.value - 1


def fit(points: Sequence[Point]) -> float:
    """The system share that makes the product of predicted over published 1; rates grow in proportion to it."""
    ratios = [math.log(point.value / predict(point, 1.0)) for point in points if point.fit]
    return round(math.exp(sum(ratios) / len(ratios)), 3)


def rows_of(points: Sequence[Point], share: float) -> list[Row]:
    return [Row(point=p, roofline=predict(p, None), calibrated=predict(p, share)) for p in points]


def mape(rows: Sequence[Row]) -> float:
    """Mean absolute error in percent of the published figures."""
    return 100 * sum(abs(row.error) for row in rows) / len(rows)


def rank_correlation(rows: Sequence[Row]) -> float:
    """Spearman's: of the ranks of published and predicted figures. No two figures here are equal."""
    published = _ranks([row.point.value for row in rows])
    predicted = _ranks([row.calibrated for row in rows])
    apart = sum((a - b) ** 2 for a, b in zip(published, predicted, strict=True))
    return 1 - 6 * apart / (len(rows) * (len(rows) ** 2 - 1))


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks


def report(rows: Sequence[Row], share: float) -> str:
    """The accuracy page's table and its summary."""
    fitted = [row for row in rows if row.point.fit]
    held = [row for row in rows if not row.point.fit and not row.point.unfit]
    public = [row for row in held if row.point.status == "published"]
    press = [row for row in held if row.point.status != "published"]
    apart = [row for row in rows if row.point.unfit]
    named = " and ".join(f"“{row.point.name}”" for row in fitted)
    assert len(fitted) + len(held) + len(apart) == len(rows)
    return "\n\n".join(
        [
            f"n = {len(rows)}: {len(fitted)} fitted, {len(held)} held out ({len(public)} published, {len(press)} from the "
            f"press), {len(apart)} not comparable. One parameter of this table, the system share {share:.3f}, fitted on "
            f"{named}; alone they would give {' and '.join(f'{share / (1 + row.error):.2f}' for row in fitted)}.",
            f"Held out and published: mean absolute error {mape(public):.0f} % (worst "
            f"{_worst(public)}), rank correlation {rank_correlation(public):.2f}. From the press, unverified: "
            f"{mape(press):.0f} %. All held out: {mape(held):.0f} %, rank correlation {rank_correlation(held):.2f}. "
            f"The roofline alone: {_roofline_error(held):.0f} % on all held out.",
            "\n".join([HEAD, *(_line(row) for row in rows)]),
            "Sources, and what they do not say:",
            "\n".join(_source(row) for row in rows),
        ]
    )


def cpu_report() -> str:
    """What is fitted for a CPU, and what that says of the step that was not."""
    fit = fit_cpu()
    values = f"f32 products at {fit.f32:.3f} of the peak and {fit.layer_latency_s * 1e3:.1f} ms a layer"
    return (
        f"The CPU has two values of its own, {values}, solved from our own steps of 1 and 32 sequences of the tiny model; "
        f"{'; '.join(told(fit))}."
    )


def _roofline_error(rows: Sequence[Row]) -> float:
    return 100 * sum(abs(row.roofline / row.point.value - 1) for row in rows) / len(rows)


def _worst(rows: Sequence[Row]) -> str:
    row = max(rows, key=lambda row: abs(row.error))
    return f"{row.error:+.0%}, {row.point.name}"


def _line(row: Row) -> str:
    point, kind = row.point, "held out"
    if point.fit:
        kind = "fitted"
    elif point.unfit:
        kind = "not comparable"
    elif point.status != "published":
        kind = "press, held out"
    figures = " | ".join(f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in _figures(row))
    return f"| {point.name} | {point.machine} | {figures} | {row.error:+.0%} ({kind}) |"


def _figures(row: Row) -> tuple[float, float, float]:
    return row.point.value, row.roofline, row.calibrated


def _source(row: Row) -> str:
    point = row.point
    notes = "; ".join(
        filter(None, (point.taken and f"assumed: {point.taken}", point.unfit and f"not comparable: {point.unfit}"))
    )
    return f"- {point.name}: {point.source}{f' — {notes}' if notes else ''}"


def fleet(page: str) -> str:
    """What the plan of the page's command with `tokens_per_day` says about its fleet."""
    (command,) = FLEET_COMMAND.findall(page.replace("\\\n", " "))
    spec = load(*shlex.split(command))
    lines = render.text(resolve(spec, probe(spec))).splitlines()
    said = "\n".join(line for line in lines if line.startswith("fleet"))
    return f"```text\n{said}\n```"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--write", action="store_true", help="put the results into docs/costs.md, between its markers")
    args = parser.parse_args()
    points = read_points()
    share = fit(points)
    text, cpu = report(rows_of(points, share), share), cpu_report()
    print(f"{text}\n\n{cpu}")
    if args.write:
        page = DOCS.read_text()
        page = put_between(put_between(page, BEGIN, END, text), CPU_BEGIN, CPU_END, cpu)
        DOCS.write_text(put_between(page, FLEET_BEGIN, FLEET_END, fleet(page)))


if __name__ == "__main__":
    main()
