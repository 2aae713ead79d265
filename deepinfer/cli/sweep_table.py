"""The table of a sweep or search: the swept keys, what came of each point, and which ones no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer.cli.pareto import GPU, USER, Dot, frontier
from deepinfer.plan.columns import aligned

if TYPE_CHECKING:
    from deepinfer.cli.points_file import Point

_FACTS = {  # fact → heading, unit
    "num_ranks": ("ranks", ""),
    "memory_bytes": ("memory", "GB a rank"),
    "cache_tokens": ("cache", "tokens a rank"),
}
_UNSHOWN = ("prefill_tokens_per_s_per_gpu", "prompt_tokens_per_s_per_gpu")  # are in points.jsonl: a screen is narrow
_MOST_WHY = 80  # characters of a refusal; all of it is in points.jsonl
_WIDE = 14  # characters of a heading that stays on one line
_HEAD = 3  # lines of a heading: its two parts, and the unit or label
Column = list[str]  # the heading's lines, then a cell for each point


def table(points: Sequence[Point], marked: Sequence[int] = ()) -> str:
    """Aligned lines, one for each point. `marked` are indices of points that get a star."""
    columns = [_column("", "", ["*" if index in marked else "" for index in range(len(points))])] if marked else []
    columns += [_swept(points, key) for key in dict.fromkeys(key for point in points for key in point.swept)]
    columns += [_fact(points, name) for name in dict.fromkeys(name for point in points for name in point.facts)]
    names = dict.fromkeys(figure.name for point in points for figure in point.figures)
    columns += [_figure(points, name) for name in names if name not in _UNSHOWN]
    if any(point.failed for point in points):
        columns.append(_column("exit", "", [str(point.exit_code) if point.failed else "" for point in points]))
        columns.append(_column("why", "", [_cut(point.refusal) for point in points]))
    numbers = [index for index, column in enumerate(columns) if _is_number_column(column)]
    rows = aligned(list(zip(*columns)), right=numbers)
    return "\n".join(row for index, row in enumerate(rows) if row.strip() or index >= _HEAD)


def pareto_best(points: Sequence[Point], objectives: Sequence[str], signs: Sequence[int]) -> list[int]:
    """Indices of the points that have all objectives and are beaten by none."""
    rows = [[point.value(name) for name in objectives] for point in points]
    whole = [(index, [value for value in row if value is not None]) for index, row in enumerate(rows)]
    whole = [(index, row) for index, row in whole if len(row) == len(objectives) and not points[index].failed]
    best = frontier([row for _, row in whole], signs)
    return [whole[position][0] for position in best]


def dots_of(points: Sequence[Point]) -> list[Dot]:
    """The points that the picture can show: those with tokens/s/GPU and tokens/s/user."""
    dots = []
    for point in points:
        per_gpu, per_user = point.value(GPU), point.value(USER)
        if per_gpu is not None and per_user is not None and not point.failed:
            label = next(figure.said for figure in point.figures if figure.name == GPU)
            name = " ".join(str(value) for value in point.swept.values())
            dots.append(Dot(per_user=per_user, per_gpu=per_gpu, name=name, label=label, curve=point.curve))
    return dots


def number(value: float) -> str:
    """Four digits that count, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_WHY else f"{text[: _MOST_WHY - 1]}…"


def _column(heading: str, unit: str, cells: Sequence[str]) -> Column:
    """Long names are broken before their last part: scheduler.max_num_seqs, decode_tokens_per_s_per_gpu."""
    first, last = heading, ""
    if len(heading) > _WIDE:
        place = max(heading.rfind("."), heading.find("_per_s"), 0)
        first, last = heading[:place], heading[place:]
    return [first, last, unit, *cells]


def _swept(points: Sequence[Point], key: str) -> Column:
    return _column(key, "", [str(point.swept.get(key, "")) for point in points])


def _fact(points: Sequence[Point], name: str) -> Column:
    heading, unit = _FACTS.get(name, (name, ""))
    scale = 1e9 if name == "memory_bytes" else 1.0
    cells = [number(point.facts[name] / scale) if name in point.facts else "" for point in points]
    return _column(heading, unit, cells)


def _figure(points: Sequence[Point], name: str) -> Column:
    """A headline figure; its label stands under the heading where all points agree on it, else beside each number."""
    found = [next((figure for figure in point.figures if figure.name == name), None) for point in points]
    labels = {figure.said for figure in found if figure}
    one = labels.pop() if len(labels) == 1 else ""
    cells = [f"{number(figure.value)}{'' if one else f' {figure.said}'}" if figure else "" for figure in found]
    return _column(name, one, cells)


def _is_number_column(column: Column) -> bool:
    cells = [cell for cell in column[_HEAD:] if cell]
    return bool(cells) and all(cell[0].isdigit() or cell[0] in "-." for cell in cells)
