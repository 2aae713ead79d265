"""-m: every point of a sweep is a process of its own, and none stops the others unless that is asked for.

A point that cannot be planned or run is a row of the table, with its exit code and reason. Rows are appended to
OUT/points.jsonl as they come; the same command with the same out= takes the settled ones from there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer import __version__
from deepinfer.cli.main import checked
from deepinfer.cli.pareto import FILE as PICTURE
from deepinfer.cli.pareto import GPU, HOW_TO_PLOT, USER, draw
from deepinfer.cli.points_file import (
    Point,
    append_point,
    exit_code_of,
    facts_of,
    figures_of,
    first_sentence,
    read_points,
)
from deepinfer.cli.streams import printable_json
from deepinfer.cli.sweep_points import Job, axes_of, check_axes, jobs_of
from deepinfer.cli.sweep_run import Ended, run_jobs
from deepinfer.cli.sweep_table import dots_of, pareto_best, table
from deepinfer.config.argv import CommandLine
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.machine import Host
from deepinfer.config.specs import Spec

TABLED = ("plan", "bench")  # verbs whose runs answer with figures: told in a table instead of one after the other
SHOWN_LINES = 6  # of the message of a run that failed
_NOT_SWEPT = {"tune": "a search makes runs of its own", "launch": "it writes the files of one plan"}
_OF_ONE = {
    "explain": "it is about one plan",
    "diff": "it compares one plan",
    "output": "all runs would write to one file",
}


def sweep(line: CommandLine) -> int:
    """Run the product of all swept values, in the order typed; returns the lowest failing exit class.

    Raises Refused before the first run when a value is wrong by itself, KeyboardInterrupt with all that is done kept.
    """
    verb = line.verb or next((text[5:] for text in line.overrides if text.startswith("task=")), "generate")
    ours = ("out", "format") if verb in TABLED else ("out",)
    own = {key: value for key, value in line.words.items() if key in ours}
    words = {key: value for key, value in line.words.items() if key not in own}
    _refuse_strings_of_one(verb, line.words)
    line = msgspec.structs.replace(line, words=words)
    axes = axes_of(line)
    specs: list[Spec] = []
    check_axes(line, axes, lambda point: specs.append(checked(point)[0]))
    stop_on_failure = any(spec.sweep.stop_on_failure for spec in specs)
    jobs = jobs_of(line, axes, words | ({"format": "json"} if verb in TABLED else {}))
    folder = open_folder(own.get("out"))
    rows = _Rows(folder, jobs, verb, stop_on_failure)
    try:
        rows.run()
    except KeyboardInterrupt:
        told = f"{len(rows.points)} of {len(jobs)} points are kept; the same command with out={folder} goes on"
        print(f"deepinfer: {told}", file=sys.stderr)
        rows.report(own.get("format", "text"))
        raise
    rows.report(own.get("format", "text"))
    well = sum(not point.failed for point in rows.points.values())
    unbegun = f", {len(jobs) - len(rows.points)} were not started" if len(rows.points) < len(jobs) else ""
    print(f"deepinfer: {well} of {len(jobs)} runs ended well{unbegun}", file=sys.stderr)
    return exit_code_of(rows.points.values())


def open_folder(out: str | None) -> Path:
    """The folder of a sweep or search, made where it is not there: `out`, or runs/ and the time. Raises Refused."""
    folder = Path(out).expanduser() if out is not None else Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        asked = f"out={folder}"
        raise Refused(
            [Problem(asked=asked, found=f"no folder can be made there: {error.strerror}", fix="out=…")]
        ) from error
    return folder


class _Rows:
    """The points of one command: those of earlier runs, and those that run now."""

    def __init__(self, folder: Path, jobs: Sequence[Job], verb: str, stop_on_failure: bool) -> None:
        self.folder, self.jobs, self.verb, self.stop_on_failure = folder, jobs, verb, stop_on_failure
        self._earlier = read_points(folder)
        taken = {job.identity: self._earlier[job.identity] for job in jobs if job.identity in self._earlier}
        self.points = {identity: point for identity, point in taken.items() if point.settled}

    def run(self) -> None:
        """Run what is missing; each failure is told at once."""
        todo = [job for job in self.jobs if job.identity not in self.points]
        first = 1 + max((point.number for point in self._earlier.values()), default=0)
        told = f"{len(self.jobs)} points, results in {self.folder}"
        print(f"deepinfer: {told}{self._kept(len(self.points))}", file=sys.stderr, flush=True)
        at_once = min(Host().cores, len(todo)) if self.verb == "plan" else 1
        runs = run_jobs(todo, self.folder / "jobs", first_number=first, at_once=max(at_once, 1), go_on=self._go_on)
        with tqdm(
            total=len(self.jobs), initial=len(self.points), unit="point", disable=not sys.stderr.isatty(), leave=False
        ) as bar:
            try:
                for ended in runs:
                    self._take(ended)
                    bar.update()
            finally:
                runs.close()  # type: ignore[attr-defined]

    def report(self, form: str) -> None:
        """The table (or JSON lines) on stdout, the picture beside the lines."""
        points = [self.points[job.identity] for job in self.jobs if job.identity in self.points]
        if not points:
            return
        if form == "json":
            for point in points:
                print(printable_json(msgspec.json.encode(point).decode()))
        else:
            best = pareto_best(points, (GPU, USER), (1, 1))
            print(table(points, best), file=sys.stdout if self.verb in TABLED else sys.stderr)
            told = tell_picture(points, self.folder, "deepinfer " + self.verb)
            if told:
                print(f"* on the Pareto frontier of {GPU} and {USER}; {told}")
        sys.stdout.flush()

    def _go_on(self) -> bool:
        return not (self.stop_on_failure and any(point.failed for point in self.points.values()))

    def _kept(self, number: int) -> str:
        return f", {number} of them settled by an earlier run" if number else ""

    def _take(self, ended: Ended) -> None:
        point = point_of(ended, with_figures=self.verb in TABLED)
        append_point(self.folder, point)
        self.points[point.identity] = point
        if self.verb not in TABLED:
            sys.stdout.write(ended.printed.read_text("utf-8", "replace"))
            sys.stdout.flush()
        if point.failed:
            swept = " ".join(f"{key}={value}" for key, value in point.swept.items())
            tell_failure(ended, swept, self.folder)


def point_of(ended: Ended, *, with_figures: bool = True) -> Point:
    """The record of a run that is over; `with_figures` where its stdout is the JSON of a plan or a bench."""
    shared: dict[str, Any] = {
        "number": ended.number,
        "identity": ended.job.identity,
        "swept": ended.job.swept,
        "overrides": ended.job.overrides,
        "exit_code": ended.exit_code,
        "wall_s": ended.wall_s,
        "versions": {"deepinfer": __version__},
    }
    if ended.exit_code != ExitCode.OK:
        return Point(**shared, refusal=first_sentence(ended.said))
    if not with_figures:
        return Point(**shared)
    result = json.loads(ended.printed.read_bytes())
    return Point(**shared, facts=facts_of(result), figures=figures_of(result))


def tell_failure(ended: Ended, swept: str, folder: Path) -> None:
    """Number, values, exit code and the first lines of what a failed run said, on stderr."""
    lines = [line for line in ended.said.splitlines() if line.strip()]
    cut = ["…"] * (len(lines) > SHOWN_LINES)
    crashed = any(line.startswith("Traceback") for line in lines)  # whose end says what happened
    lines = [*cut, *lines[-SHOWN_LINES:]] if crashed else [*lines[:SHOWN_LINES], *cut]
    shown = [f"    {line}" for line in lines]
    log = folder / "jobs" / f"{ended.number:04d}.log"
    head = f"deepinfer: run {ended.number} ended with exit code {ended.exit_code}: {swept} ({log})"
    tqdm.write("\n".join([head, *shown]), file=sys.stderr)
    sys.stderr.flush()


def tell_picture(points: Iterable[Point], folder: Path, title: str) -> str:
    """Draw what can be drawn; a clause that says where it lies, or how to get it. Empty where there is nothing to draw."""
    dots = dots_of(list(points))
    if not dots:
        return ""
    path = folder / PICTURE
    return str(path) if draw(dots, path, title) else HOW_TO_PLOT


def _refuse_strings_of_one(verb: str, words: dict[str, str]) -> None:
    problems = [
        Problem(asked=f"{word}={words[word]}", found="-m makes many runs", why=why)
        for word, why in _OF_ONE.items()
        if word in words
    ]
    if verb in _NOT_SWEPT:
        problems.append(
            Problem(asked=f"{verb} -m", found="one run makes it", why=_NOT_SWEPT[verb], fix=f"deepinfer {verb} …")
        )
    if words.get("prompt") == "-":
        problems.append(Problem(asked="prompt=-", found="-m makes many runs", why="stdin can be read once"))
    if verb in TABLED and words.get("format", "text") not in ("text", "json"):
        form = words["format"]
        problems.append(Problem(asked=f"format={form}", found="-m gives a table or JSON lines", fix="format=json"))
    if problems:
        raise Refused(problems)
