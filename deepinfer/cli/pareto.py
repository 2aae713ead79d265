"""Which points no other beats in every objective, and their picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GPU, USER = "tokens_per_s_per_gpu", "tokens_per_s_per_user"
FILE = "pareto.png"
HOW_TO_PLOT = "the picture needs matplotlib: pip install -e '.[plot]'"


class Dot(Struct, frozen=True, kw_only=True):
    """One point of the picture."""

    per_user: float  # tokens/s
    per_gpu: float  # tokens/s
    name: str
    label: str  # roofline, calibrated or measured


def frontier(values: Sequence[Sequence[float]], signs: Sequence[int]) -> list[int]:
    """Indices of the points that no other beats: as good in every objective and better in one.

    `signs` are 1 where more is better and -1 where less is. Equal points are on the frontier together. O(n²).
    """
    signed = [tuple(sign * value for sign, value in zip(signs, row)) for row in values]

    def beaten(row: tuple[float, ...]) -> bool:
        return any(other != row and all(a >= b for a, b in zip(other, row)) for other in signed)

    return [index for index, row in enumerate(signed) if not beaten(row)]


def draw(dots: Sequence[Dot], path: Path, title: str) -> bool:
    """Write the picture of tokens/s/GPU against tokens/s/user; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return False
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    _fill(figure.add_subplot(), dots, title)
    figure.savefig(path, dpi=150)
    return True


def _fill(axes: Axes, dots: Sequence[Dot], title: str) -> None:
    best = [dots[index] for index in frontier([(dot.per_user, dot.per_gpu) for dot in dots], (1, 1))]
    best = list({(dot.per_user, dot.per_gpu): dot for dot in sorted(best, key=lambda dot: dot.per_user)}.values())
    for label in sorted({dot.label for dot in dots}):
        mine = [dot for dot in dots if dot.label == label]
        axes.scatter(
            [dot.per_user for dot in mine], [dot.per_gpu for dot in mine], s=18, label=f"{label} ({len(mine)})"
        )
    axes.plot(
        [dot.per_user for dot in best], [dot.per_gpu for dot in best], color="black", lw=1, label="Pareto frontier"
    )
    axes.scatter(
        [dot.per_user for dot in best], [dot.per_gpu for dot in best], s=60, facecolors="none", edgecolors="black"
    )
    for dot in best if len(best) <= 12 else ():
        axes.annotate(dot.name, (dot.per_user, dot.per_gpu), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set(xlabel="tokens/s/user", ylabel="tokens/s/GPU", title=title)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
