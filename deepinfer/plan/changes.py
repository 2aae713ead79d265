"""Differences between two plans as text: one a line, section first for grep, numbers with what they moved by."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import structs

from deepinfer.plan.compare import Change

SECTION = 9  # columns
KEY = 28  # columns
LONG = 60  # columns from which the two sides stand below each other
SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def lines(changes: Sequence[Change], *, at_most: int = 0, remarks: Mapping[str, str] | None = None) -> list[str]:
    """The differences for people; of one section no more than `at_most` (0: all) and how many there are besides.

    `remarks` are said of a change in brackets, by its path.
    """
    told = []
    for section, group in groupby(changes, key=lambda change: change.section):
        every = list(group)
        every = _together(every) if section == "ops" else every
        shown = every[:at_most] if at_most and len(every) > at_most + 1 else every
        rows = [row for change in shown for row in _rows(change, (remarks or {}).get(change.path, ""))]
        if len(shown) < len(every):
            rows.append(f"… and {len(every) - len(shown)} more")
        told += [f"{section:<{SECTION - 1}} {row}" for row in rows]
    return told


def _together(changes: list[Change]) -> list[Change]:
    """Ops that move alike as one change: there are two dozen, and a chip moves them all."""
    alike: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        alike.setdefault((shown(change.before), shown(change.after)), []).append(change)
    return [
        structs.replace(first, key=f"{first.key} and {len(rest)} more" if rest else first.key)
        for first, *rest in alike.values()
    ]


def _rows(change: Change, remark: str) -> Iterator[str]:
    if not change.key:
        yield f"- {change.before}" if change.after is None else f"+ {change.after}"
        return
    before, after = shown(change.before, change.unit), shown(change.after, change.unit)
    if before == after:  # too near each other for a rounded number
        before, after = shown(change.before), shown(change.after)
    moved = "; ".join(filter(None, (moved_by(change), remark)))
    if len(before) + len(after) > LONG:
        yield f"{change.key:<{KEY - 1}} {before}"
        yield f"{'':<{KEY - 2}}→ {after}{f'  ({remark})' if remark else ''}"
    else:
        yield f"{change.key:<{KEY - 1}} {before} → {after}{f'  ({moved})' if moved else ''}"


def moved_by(change: Change) -> str:
    """How far a number moved: "+1.5 GB, +12 %"; empty for everything else."""
    before, after = change.before, change.after
    if not (_is_number(before) and _is_number(after)):
        return ""
    by = after - before
    amount = f"{'-' if by < 0 else '+'}{shown(abs(by), change.unit)}"
    if not before or after < 0 < before or before < 0 < after:
        return amount
    return f"{amount}, ×{after / before:.3g}" if after >= 10 * before else f"{amount}, {100 * by / before:+.3g} %"


def shown(value: Any, unit: str = "") -> str:
    """One side of a difference."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return _number(value, unit)
        case str():
            return value or '""'
        case list() if all(isinstance(item, str) for item in value):
            return " ".join(value) or "nothing"
    return json.dumps(value, ensure_ascii=False)


def _number(value: float, unit: str) -> str:
    scales = {"B": SIZES, "bytes": SIZES, "s": TIMES}.get(unit)
    if scales and value:
        name, scale = next((each for each in scales if abs(value) >= each[1]), scales[-1])
        return f"{value / scale:.4g} {name}"
    plain = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{plain} {unit}".rstrip()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
