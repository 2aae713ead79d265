"""Lines that kernel tests write with --time: the latest of each case, and whether it reached its target."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]
_TARGET = re.compile(r"^(≥|>=|≤|<=|within)\s*([\d.]+)\s*(TF|TB/s|GB/s|%|µs|us|×|x|passes)")


def read(path: Path) -> list[Line]:
    """Lines of a results file; none where it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.is_file() else []


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each op, case and variant, in order of first appearance."""
    kept: dict[tuple[str, str, str], Line] = {}
    for line in lines:
        kept[line["op"], line["case"], line.get("variant", "")] = line
    return list(kept.values())


def reached(line: Line) -> bool | None:
    """Whether the line reaches its target; None where it has none.

    A target begins with ≥, ≤ (or >=, <=) or “within”, a number and TF, TB/s, GB/s, % (of the bound), µs (us), × (x: the
    floor) or passes, which are floors too; the floor is that of the bus where the line has `host_floor_us`. Raises
    ValueError where it does not.
    """
    if not line.get("target"):
        return None
    found = _TARGET.match(line["target"])
    if found is None:
        raise ValueError(f"target {line['target']!r} of {line['op']}: write ≥, ≤ or within, a number, then a unit")
    sign, number, unit = found.groups()
    value = {
        "TF": line["tflops"],
        "TB/s": line["gbytes_per_s"] / 1e3,
        "GB/s": line["gbytes_per_s"],
        "%": 100 * line["share"],
        "µs": line["median_us"],
        "us": line["median_us"],
    }.get(unit, times_floor(line))
    return value >= float(number) if sign in ("≥", ">=") else value <= float(number)


def times_floor(line: Line) -> float:
    """The time as a multiple of the floor: the bus's where data comes over it."""
    floor_us = line.get("host_floor_us", line["floor_us"])
    return line["median_us"] / floor_us if floor_us else float("inf")


def rate(line: Line) -> str:
    """Arithmetic where that binds, else bandwidth."""
    if line["bound"] == "compute":
        return f"{line['tflops']:,.0f} TF"
    return f"{line['gbytes_per_s'] / 1e3:.2f} TB/s"


def micros(value: float) -> str:
    """Three digits of microseconds."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(line: Line) -> str:
    """The target and whether it was reached; nothing where there is none."""
    state = reached(line)
    return "" if state is None else f"{line['target']}: {'reached' if state else 'missed'}"


def beside(line: Line) -> str:
    """Peers by how many times our time they take."""
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in line.get("ratios", {}).items())


def notices(lines: Iterable[Line]) -> list[str]:
    """Why peers are absent, each reason once."""
    return sorted({f"{name}: {why}" for line in lines for name, why in line.get("absent", {}).items()})
