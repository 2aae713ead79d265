"""Which points no other beats in every objective, and their picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from deepinfer.cli.extras import how_to_install
from deepinfer.cli.out_folder import naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GPU, USER = "tokens_per_s_per_gpu", "tokens_per_s_per_user"
FILE = "pareto.png"
MOST_CURVES = 24  # above that a picture of curves is a tangle: dots alone
MOST_NAMES = 12


class Dot(Struct, frozen=True, kw_only=True):
    """One point of the picture, and the curve that it lies on where its plan told one."""

    per_user: float  # tokens/s
    per_gpu: float  # tokens/s
    name: str
    label: str  # roofline, calibrated or measured
    curve: tuple[tuple[float, float], ...] = ()  # tokens/s of a user and of a GPU, at fewer to more sequences


def frontier(values: Sequence[Sequence[float]], signs: Sequence[int]) -> list[int]:
    """Indices of the points that no other beats: as good in every objective and better in one.

    `signs` are 1 where more is better and -1 where less is. Equal points are on the frontier together. O(n · frontier).
    """
    signed = [tuple(sign * value for sign, value in zip(signs, row)) for row in values]
    best: list[tuple[float, ...]] = []
    for row in sorted(set(signed), reverse=True):  # whatever beats a row comes before it
        if not any(all(a >= b for a, b in zip(other, row)) for other in best):
            best.append(row)
    unbeaten = set(best)
    return [index for index, row in enumerate(signed) if row in unbeaten]


def draw(dots: Sequence[Dot], path: Path, title: str) -> bool:
    """Write the picture of tokens/s/GPU against tokens/s/user; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    _fill(figure.add_subplot(), dots, title)
    with naming(path):
        figure.savefig(path, dpi=130)
    return True


def how_to_plot() -> str:
    """A clause for those who have no matplotlib."""
    return f"the picture needs matplotlib: {how_to_install('plot')}"


def _fill(axes: Axes, dots: Sequence[Dot], title: str) -> None:
    labels = sorted({dot.label for dot in dots})
    if len(dots) <= MOST_CURVES:
        for index, dot in enumerate(sorted(dots, key=lambda dot: -dot.per_gpu)):
            _curve(axes, dot, f"C{index % 10}", ("-", "--", ":")[index // 10 % 3])
    else:
        for label in labels:
            mine = [dot for dot in dots if dot.label == label]
            users, gpus = [dot.per_user for dot in mine], [dot.per_gpu for dot in mine]
            axes.scatter(users, gpus, s=18, label=f"{label} ({len(mine)} points)")
    _frontier_line(axes, dots, named=len(dots) > MOST_CURVES)
    axes.set(xlabel="tokens/s/user", ylabel="tokens/s/GPU, prompts and answers", title=", ".join([title, *labels]))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.08)
    axes.legend(fontsize=8, title="dots: as configured; lines: fewer sequences at once" if _has_curves(dots) else None)
    axes.grid(alpha=0.3)


def _has_curves(dots: Sequence[Dot]) -> bool:
    return len(dots) <= MOST_CURVES and any(dot.curve for dot in dots)


def _curve(axes: Axes, dot: Dot, color: str, style: str) -> None:
    if dot.curve:
        axes.plot([user for user, _ in dot.curve], [gpu for _, gpu in dot.curve], color=color, ls=style, lw=1.2)
    axes.plot([dot.per_user], [dot.per_gpu], color=color, ls=style, marker="o", ms=6, label=dot.name)


def _frontier_line(axes: Axes, dots: Sequence[Dot], *, named: bool) -> None:
    """What no point of any drawn curve beats; the best points are named where they are few."""
    drawn = [(dot.per_user, dot.per_gpu) for dot in dots]
    if _has_curves(dots):
        drawn += [point for dot in dots for point in dot.curve]
    best = sorted({drawn[index] for index in frontier(drawn, (1, 1))})
    axes.plot([user for user, _ in best], [gpu for _, gpu in best], color="black", lw=2.5, alpha=0.25, label="frontier")
    names = {(dot.per_user, dot.per_gpu): dot.name for dot in dots}
    for point in best if named and len(best) <= MOST_NAMES else ():
        axes.annotate(names[point], point, xytext=(4, 4), textcoords="offset points", fontsize=7)
