"""One line of points.jsonl: a point that was planned, measured or refused. Appended as it ends, read again to go on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path
from typing import Any

import msgspec

from deepinfer.cli.out_folder import naming
from deepinfer.config.errors import ExitCode
from deepinfer.plan.cost.types import Figure

SETTLED = (ExitCode.OK, ExitCode.CONFIG, ExitCode.PLAN, ExitCode.MEMORY)  # which a second run would end in again
FILE = "points.jsonl"
MEASURED = (  # keys of a bench's line that become columns
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "p99_itl_ms",
)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one combination of swept values."""

    number: int  # of the run that made it, counted over all runs of a folder
    identity: str
    swept: dict[str, Any]  # key → value
    overrides: tuple[str, ...]
    exit_code: int
    wall_s: float
    refusal: str = ""  # first sentence of what a run said that did not end well
    facts: dict[
        str, float
    ] = {}  # num_ranks, memory_bytes of the fullest rank, cache_tokens of a rank; or measured keys
    figures: tuple[Figure, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()  # tokens/s of a user and of a GPU, at fewer to more sequences
    model: str = ""  # that was planned or measured
    printed: str = ""  # file with the stdout of its run, in the folder; empty where it had none of its own
    versions: dict[str, str] = {}

    @property
    def failed(self) -> bool:
        return self.exit_code != ExitCode.OK

    @property
    def settled(self) -> bool:
        """Whether a run with the same folder may take it as it is."""
        return self.exit_code in SETTLED

    def value(self, name: str) -> float | None:
        """A figure or fact by name; None where this point has none."""
        return next((figure.value for figure in self.figures if figure.name == name), self.facts.get(name))


def read_points(folder: Path) -> dict[str, Point]:
    """Identity → its last point. A line that was cut short by a kill counts for nothing."""
    found: dict[str, Point] = {}
    path = folder / FILE
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            point = msgspec.json.decode(line, type=Point)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        found[point.identity] = point
    return found


def append_point(folder: Path, point: Point) -> None:
    """Add one line; what a kill left without an end gets one first. Raises Refused where it cannot be written; the
    file is then as it was."""
    path = folder / FILE
    with naming(path), path.open("ab+", buffering=0) as file:
        size, line = file.tell(), msgspec.json.encode(point) + b"\n"
        if size:
            file.seek(-1, 2)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            _write_all(file, line)
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _write_all(file: RawIOBase, line: bytes) -> None:
    """A full disk takes a part of a line first, and refuses only the rest."""
    while line:
        line = line[file.write(line) or 0 :]


def exit_code_of(points: Iterable[Point]) -> int:
    """The lowest failing class of all; OTHER only where nothing else failed."""
    failed = [point.exit_code for point in points if point.failed]
    return min(failed, key=lambda code: (code == ExitCode.OTHER, code), default=ExitCode.OK)


def facts_of(result: dict[str, Any]) -> dict[str, float]:
    """The columns of a plan (format=json) or of a bench's line beside its figures."""
    if "layout" in result:
        return {
            "num_ranks": result["layout"]["num_ranks"],
            "memory_bytes": max(memory["device_bytes"] for memory in result["memory"]),
            "cache_tokens": result["capacity"]["tokens"],
        }
    return {name: result[name] for name in ("num_ranks", *MEASURED) if result.get(name) is not None}


def model_of(result: dict[str, Any]) -> str:
    """The name of the model that a plan or a bench's line is about."""
    model = result.get("model")
    return str(model["name"] if isinstance(model, dict) else result.get("model_id", ""))


def figures_of(result: dict[str, Any]) -> tuple[Figure, ...]:
    """The headline of a plan's cost, or of a bench's line."""
    headline = result.get("headline", result.get("cost", {}).get("headline", ()))
    return msgspec.convert(headline, tuple[Figure, ...])


def curve_of(result: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """What a plan's two rates would be with fewer sequences; empty for a bench, which measures one number of them."""
    tradeoff = result.get("cost", {}).get("tradeoff", ())
    return tuple((each["tokens_per_s_per_user"], each["tokens_per_s_per_gpu"]) for each in tradeoff)


def first_sentence(said: str) -> str:
    """The first problem of a message on stderr as one line; of any other message its last line."""
    lines = [line for line in said.splitlines() if line.strip() and "this is a fault of deepinfer" not in line]
    start = next((i for i, line in enumerate(lines) if re.fullmatch(r"deepinfer: \d+ problems?:", line)), None)
    if start is None:
        return lines[-1].removeprefix("deepinfer: ") if lines else "it said nothing"
    asked, found = (line.strip() for line in lines[start + 1 : start + 3])
    more = int(lines[start].split()[1]) - 1
    return f"{asked}: {found}{f' (and {more} more)' if more else ''}"
