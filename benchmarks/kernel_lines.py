"""Lines that kernel tests write with --time: how one is made, the latest of each case, and whether it reached its target."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from device_timer import COPY_BYTES_PER_S, Spread, floor_us
from record import surroundings
from result_lines import Line
from result_lines import read as read  # who makes tables of lines reads them from here

_TARGET = re.compile(r"^(≥|>=|≤|<=|within)\s*([\d.]+)\s*(TF|TB/s|GB/s|%|µs|us|×|x|passes)")


def line_of(
    op: str,
    case: str,
    spreads: Mapping[str, Spread],
    absent: Mapping[str, str],
    flops: float,
    dtype: str,
    moved_bytes: float,
    values: Mapping[str, Any],
) -> Line:
    """A timed case: ours (`spreads["ours"]`) against its floor and its peers, absent ones with their reasons."""
    ours, peers = spreads["ours"], {name: spread for name, spread in spreads.items() if name != "ours"}
    floor, bound = floor_us(flops, dtype, moved_bytes)
    if values.get("host_floor_us", 0.0) > floor:
        floor, bound = values["host_floor_us"], "host link"
    return {
        "op": op,
        "case": case,
        **values,
        "median_us": round(ours.median_us, 3),
        "p10_us": round(ours.p10_us, 3),
        "p90_us": round(ours.p90_us, 3),
        "tflops": round(flops / ours.median_us / 1e6, 1),
        "gbytes_per_s": round(moved_bytes / ours.median_us / 1e3, 1),
        "floor_us": round(floor, 3),
        "bound": bound,
        "share": round(floor / ours.median_us, 4),
        "peers_us": {name: round(spread.median_us, 3) for name, spread in peers.items()},
        "ratios": {name: round(spread.median_us / ours.median_us, 3) for name, spread in peers.items()},
        "absent": dict(absent),
        "device": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        **surroundings(),
    }


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each op, case and variant, in order of first appearance."""
    kept: dict[tuple[str, str, str], Line] = {}
    for line in lines:
        kept[line["op"], line["case"], line.get("variant", "")] = line
    return list(kept.values())


def reached(line: Line) -> bool | None:
    """Whether the line reaches its target; None where it has none."""
    if not line.get("target"):
        return None
    sign, number, unit, _ = _parts(line)
    value = figure(line, unit)
    return value >= float(number) if sign in ("≥", ">=") else value <= float(number)


def figure(line: Line, unit: str) -> float:
    """What a target in this unit is held against. Bandwidths of products are those of their weights' bytes alone."""
    gbytes_per_s, share = line["gbytes_per_s"], line["share"]
    if "weight_bytes" in line:
        gbytes_per_s = line["weight_bytes"] / line["median_us"] / 1e3
        share = gbytes_per_s * 1e9 / COPY_BYTES_PER_S
    held = {"TF": line["tflops"], "TB/s": gbytes_per_s / 1e3, "GB/s": gbytes_per_s, "%": 100 * share}
    return held.get(unit, line["median_us"] if unit in ("µs", "us") else times_floor(line))


def measured(lines: Sequence[Line]) -> str:
    """Least and most of lines with one target, in its unit."""
    unit = _parts(lines[0])[2]
    unit = {"us": "µs", "x": "×", "passes": "×", "GB/s": "TB/s"}.get(unit, unit)
    form = {"TF": "{:,.0f}", "TB/s": "{:.2f}", "%": "{:.1f}"}.get(unit)
    shown = form.format if form else micros
    return f"{span([figure(line, unit) for line in lines], shown)} {unit}"


def span(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Least and most, or one of them where they look alike."""
    low, high = shown(min(values)), shown(max(values))
    return low if low == high else f"{low} – {high}"


def _parts(line: Line) -> tuple[str, str, str, str]:
    """Sign, number and unit of a target, and the words after them.

    It begins with ≥, ≤ (or >=, <=) or “within”, a number and TF, TB/s, GB/s, % (of the bound), µs (us), × (x: the floor) or
    passes, which are floors too; the floor is that of the bus where the line has `host_floor_us`. Raises ValueError where it
    does not.
    """
    found = _TARGET.match(line["target"])
    if found is None:
        raise ValueError(f"target {line['target']!r} of {line['op']}: write ≥, ≤ or within, a number, then a unit")
    sign, number, unit = found.groups()
    return sign, number, unit, line["target"][found.end() :].strip()


def aim(line: Line) -> str:
    """The target in the tables' one spelling: ≥ or ≤, a number, a unit, then what it is of or where it holds."""
    sign, number, unit, rest = _parts(line)
    sign = "≥" if sign in ("≥", ">=") else "≤"
    unit = {"us": "µs", "x": "×"}.get(unit, unit)
    if unit == "×":
        rest = {"": "the floor", "floor": "the floor"}.get(rest, rest.removeprefix("of "))
    return f"{sign} {number} {unit} {rest}".strip()


def times_floor(line: Line) -> float:
    """The time as a multiple of the floor: the bus's where data comes over it."""
    floor_us = line.get("host_floor_us", line["floor_us"])
    return line["median_us"] / floor_us if floor_us else float("inf")


def rate(line: Line) -> str:
    """Arithmetic where that binds, the bus's bytes where that does, else bandwidth."""
    if line["bound"] == "compute":
        return f"{line['tflops']:,.0f} TF"
    if line["bound"] == "host link" and "host_bytes" in line:
        return f"{line['host_bytes'] / line['median_us'] / 1e3:.1f} GB/s of the bus"
    gbytes_per_s = line["gbytes_per_s"]
    return f"{gbytes_per_s / 1e3:.2f} TB/s" if gbytes_per_s >= 100 else f"{gbytes_per_s:.3g} GB/s"


def micros(value: float) -> str:
    """Three digits of microseconds."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(line: Line) -> str:
    """The target, whether it was reached, and by what figure; nothing where there is none."""
    state = reached(line)
    return "" if state is None else f"{aim(line)}: {'reached' if state else 'missed'} ({measured([line])})"


def beside(line: Line) -> str:
    """Peers by how many times our time they take."""
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in line.get("ratios", {}).items())


def notices(lines: Iterable[Line]) -> list[str]:
    """Why peers are absent, each reason once."""
    return sorted({f"{name}: {why}" for line in lines for name, why in line.get("absent", {}).items()})
