"""Differences between two plans as text: one a line, section first for grep, numbers with what they moved by."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import structs

from deepinfer.plan.compare import Change
from deepinfer.plan.quantities import quantity

SECTION = 9  # columns
KEY = 28  # columns
LONG = 60  # columns from which the two sides stand below each other
NOISE = 1e-4  # of a figure: what a rounding elsewhere moves
DIGITS = (4, 6, 9)  # significant ones: as many as tell the two sides apart


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


def notable(changes: Sequence[Change]) -> tuple[list[Change], int]:
    """What a reader wants to see, and how many figures moved by less than NOISE.

    What is left of a memory is left out where what is used of it is told: it only says the same again.
    """
    used = {change.path for change in changes if change.key.endswith("device_bytes")}
    told = [
        change
        for change in changes
        if not (change.key.endswith("headroom_bytes") and change.path.replace("headroom", "device") in used)
    ]
    kept = [change for change in told if not is_noise(change)]
    return kept, len(told) - len(kept)


def is_noise(change: Change) -> bool:
    """Whether a figure or a size hardly moved. Other whole numbers count something: none of their changes is noise."""
    before, after = change.before, change.after
    if not (_is_number(before) and _is_number(after)):
        return False
    if isinstance(before, int) and isinstance(after, int) and change.unit != "B":
        return False
    return bool(abs(after - before) < NOISE * max(abs(before), abs(after)))


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
    before, after = _sides(change)
    moved = "; ".join(filter(None, (moved_by(change), remark)))
    if len(before) + len(after) > LONG:
        yield f"{change.key:<{KEY - 1}} {before}"
        yield f"{'':<{KEY - 2}}→ {after}{f'  ({remark})' if remark else ''}"
    else:
        yield f"{change.key:<{KEY - 1}} {before} → {after}{f'  ({moved})' if moved else ''}"


def _sides(change: Change) -> tuple[str, str]:
    """Both sides with as many digits as tell them apart; where none do, in full."""
    for digits in DIGITS:
        before, after = (shown(side, change.unit, digits) for side in (change.before, change.after))
        if before != after:
            return before, after
    return f"{json.dumps(change.before)} {change.unit}".rstrip(), f"{json.dumps(change.after)} {change.unit}".rstrip()


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


def shown(value: Any, unit: str = "", digits: int = DIGITS[0]) -> str:
    """One side of a difference."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return quantity(value, unit, digits)
        case str():
            return value or "nothing"
        case list() if all(isinstance(item, str) for item in value):
            return " ".join(value) or "nothing"
    return json.dumps(value, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
