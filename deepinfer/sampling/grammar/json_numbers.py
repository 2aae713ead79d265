"""Numbers in a schema that a grammar cannot keep to the letter: they are refused, with what to write instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EXACT = 2**53  # libraries hold numbers as float64, which has every whole number up to here
MAX_COUNT = 2**31 - 1
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def number_problems(keyword: str, value: Any, place: str) -> Iterator[str]:
    """What is wrong with the value of a count, a bound, an `enum` or a `const`."""
    if keyword in ("enum", "const"):
        if keyword == "enum" and not (isinstance(value, list) and value):
            yield f"{place} is {value!r:.60}: a list of values is wanted"
        for number in _inexact(value):
            yield f"{place} holds {number!r:.60}, which JSON libraries round or cannot write: write it as a text"
    elif keyword in COUNTS:
        if not (_is_whole(value) and value >= 0):
            yield f"{place} is {value!r:.60}: a whole number from 0 on is wanted"
        elif value > MAX_COUNT:
            yield f"{place} is {value}: there may be {MAX_COUNT:,} at most; leave it out, or lower it"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        yield f"{place} is {value!r:.60}: a number is wanted"
    elif abs(value) > MAX_EXACT:
        yield f"{place} is {value!r:.60}, beyond ±2**53, from where on bounds are rounded: leave it out, or write a pattern"
    elif keyword == "multipleOf" and value <= 0:
        yield f"{place} is {value!r:.60}: a number above 0 is wanted"


def combined_problems(schema: dict[Any, Any], place: str) -> Iterator[str]:
    """Keywords of one schema that are enforced alone, and not together."""
    least, required = schema.get("minProperties"), schema.get("required", ())
    sure = len(set(required)) if isinstance(required, list) and all(isinstance(one, str) for one in required) else 0
    if isinstance(least, int) and not isinstance(least, bool) and least > sure + 1:
        yield (
            f"{place}/minProperties is {least}, and {sure} members are required: a member that is written twice would count "
            "twice, so at most one more can be asked for; name them in required"
        )
    low, high, open_low, open_high = _bounds(schema)
    if schema.get("type") != "integer" and high - low < 1:
        found = "exclusiveMinimum" if open_low and _has_no_fraction(low) and low >= 0 else ""
        found = "exclusiveMaximum" if open_high and _has_no_fraction(high) and high <= 0 else found
        if found:
            yield (
                f"{place}/{found} is a whole number less than 1 from the other bound, which is not enforced, so the answer "
                f"could be that number: write the nearest number that is allowed as {found[9:].lower()}"
            )


def _bounds(schema: dict[Any, Any]) -> tuple[float, float, bool, bool]:
    """The bounds that a schema and its allOf set together, and whether one of either side is exclusive."""
    low, high, open_low, open_high = -math.inf, math.inf, False, False
    for keyword, value in schema.items():
        if keyword == "allOf" and isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    inner = _bounds(one)
                    low, high = max(low, inner[0]), min(high, inner[1])
                    open_low, open_high = open_low or inner[2], open_high or inner[3]
        elif isinstance(value, int | float) and abs(value) <= MAX_EXACT and not isinstance(value, bool):
            if keyword in ("minimum", "exclusiveMinimum"):
                low, open_low = max(low, value), open_low or keyword == "exclusiveMinimum"
            elif keyword in ("maximum", "exclusiveMaximum"):
                high, open_high = min(high, value), open_high or keyword == "exclusiveMaximum"
    return low, high, open_low, open_high


def _inexact(value: Any) -> Iterator[int | float]:
    """The numbers in a value that float64 does not hold, or JSON cannot write."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            pending += one.values()
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, int | float) and not isinstance(one, bool) and not _is_exact(one):
            yield one


def _is_exact(number: int | float) -> bool:
    return abs(number) <= MAX_EXACT if isinstance(number, int) else math.isfinite(number)


def _is_finite(number: int | float) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def _has_no_fraction(bound: float) -> bool:
    return math.isfinite(bound) and bound == int(bound)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
