"""What is made of a run that is over: its record, the lines that tell a failure, and the picture of all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer import __version__
from deepinfer.cli.pareto import FILE as PICTURE
from deepinfer.cli.pareto import draw, how_to_plot
from deepinfer.cli.points_file import Point, curve_of, facts_of, figures_of, first_sentence, model_of
from deepinfer.cli.sweep_table import dots_of
from deepinfer.config.errors import ExitCode
from deepinfer.config.workloads import SteadyWorkload

if TYPE_CHECKING:
    from deepinfer.cli.sweep_run import Ended
    from deepinfer.config.workloads import Workload

SHOWN_LINES = 6  # of the message of a run that failed


def counted(number: int, what: str) -> str:
    """ "1 point", "10,000 points"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def point_of(ended: Ended, *, with_figures: bool = True) -> Point:
    """The record of a run that is over; `with_figures` where its stdout is the JSON of a plan or a bench."""
    shared: dict[str, Any] = {
        "number": ended.number,
        "identity": ended.job.identity,
        "swept": ended.job.swept,
        "overrides": ended.job.overrides,
        "exit_code": ended.exit_code,
        "wall_s": ended.wall_s,
        "printed": f"{ended.printed.parent.name}/{ended.printed.name}",
        "versions": {"deepinfer": __version__},
    }
    if ended.exit_code != ExitCode.OK:
        return Point(**shared, refusal=first_sentence(ended.said))
    if not with_figures:
        return Point(**shared)
    result = json.loads(ended.printed.read_bytes())
    shared |= {"facts": facts_of(result), "figures": figures_of(result), "curve": curve_of(result)}
    return Point(**shared, model=model_of(result))


def tell_failure(ended: Ended, swept: str, folder: Path) -> None:
    """Number, values, exit code and the first lines of what a failed run said, on stderr."""
    lines = [line for line in ended.said.splitlines() if line.strip()]
    cut = ["…"] * (len(lines) > SHOWN_LINES)
    crashed = any(line.startswith("Traceback") for line in lines)  # whose end says what happened
    lines = [*cut, *lines[-SHOWN_LINES:]] if crashed else [*lines[:SHOWN_LINES], *cut]
    shown = [f"    {line}" for line in lines]
    log = folder / "jobs" / f"{ended.number:04d}.log"
    values = f": {swept}" if swept else ""
    head = f"deepinfer: run {ended.number} ended with exit code {ended.exit_code}{values} ({log})"
    tqdm.write("\n".join([head, *shown]), file=sys.stderr)
    sys.stderr.flush()


def tell_picture(points: Iterable[Point], folder: Path, workloads: Sequence[Workload]) -> str:
    """Draw what can be drawn; a clause that says where it lies, or how to get it. Empty where there is nothing to draw."""
    points = list(points)
    dots = dots_of(points)
    if not dots:
        return ""
    path = folder / PICTURE
    return str(path) if draw(dots, path, title_of(points, workloads)) else how_to_plot()


def title_of(points: Sequence[Point], workloads: Sequence[Workload]) -> str:
    """Models and sizes of requests: "v41_flash, 1,024 + 512 tokens"."""
    models = dict.fromkeys(point.model for point in points if point.model)
    sizes = dict.fromkeys(
        f"{load.prompt_tokens:,} + {load.output_tokens:,} tokens"
        for load in workloads
        if isinstance(load, SteadyWorkload)
    )
    return ", ".join(
        " and ".join(each) if len(each) <= 2 else f"{len(each)} {many}"
        for each, many in ((models, "models"), (sizes, "workloads"))
        if each
    )
