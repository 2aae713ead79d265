"""-m: every point of a sweep is a process of its own, and none stops the others unless that is asked for.

A point that cannot be planned or run is a row of the table, with its exit code and reason. Rows are appended to
OUT/points.jsonl as they come; the same command with the same out= takes the settled ones from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer.cli.inputs import inputs_digest
from deepinfer.cli.line import checked
from deepinfer.cli.out_folder import locked_folder
from deepinfer.cli.pareto import GPU, USER
from deepinfer.cli.points_file import Point, append_point, exit_code_of, read_points
from deepinfer.cli.streams import printable_json
from deepinfer.cli.sweep_points import Job, axes_of, check_axes, jobs_of
from deepinfer.cli.sweep_refusals import TABLED, not_swept, refuse_many
from deepinfer.cli.sweep_run import Ended, run_jobs
from deepinfer.cli.sweep_table import pareto_best, table
from deepinfer.cli.sweep_told import counted, point_of, tell_failure, tell_picture
from deepinfer.config.argv import CommandLine
from deepinfer.config.machine import Host
from deepinfer.config.specs import Spec

LONG_S = 60.0  # a sweep that will take longer says so


def sweep(line: CommandLine) -> int:
    """Run the product of all swept values, in the order typed; returns the lowest failing exit class.

    Raises Refused before the first run when a value is wrong by itself, KeyboardInterrupt with all that is done kept.
    """
    verb = line.verb or next((text[5:] for text in line.overrides if text.startswith("task=")), "generate")
    ours = ("out", "format") if verb in TABLED else ("out",)
    own = {key: value for key, value in line.words.items() if key in ours}
    words = {key: value for key, value in line.words.items() if key not in own}
    refuse_many(verb, line.words)
    for told in not_swept(line):
        print(f"deepinfer: {told}", file=sys.stderr, flush=True)
    line = msgspec.structs.replace(line, words=words)
    axes = axes_of(line)
    specs: list[Spec] = []
    check_axes(line, axes, lambda point: specs.append(checked(point)[0]))
    words |= {"format": "json"} if verb in TABLED else {}
    jobs = jobs_of(line, axes, words, inputs_digest(specs, words))
    with locked_folder(own.get("out")) as folder:
        return _run(_Rows(folder, jobs, verb, specs), own.get("format", "text"))


def _run(rows: _Rows, form: str) -> int:
    try:
        rows.run()
    except KeyboardInterrupt:
        kept = f"{len(rows.points)} of {counted(len(rows.jobs), 'point')} are kept"
        told = f"{kept}; the same command with out={rows.folder} goes on"
        print(f"deepinfer: {told}", file=sys.stderr)
        rows.report(form)
        raise
    rows.report(form)
    well = sum(not point.failed for point in rows.points.values())
    unbegun = f", {len(rows.jobs) - len(rows.points)} were not started" if len(rows.points) < len(rows.jobs) else ""
    print(f"deepinfer: {well} of {counted(len(rows.jobs), 'run')} ended well{unbegun}", file=sys.stderr)
    return exit_code_of(rows.points.values())


class _Rows:
    """The points of one command: those of earlier runs, and those that run now."""

    def __init__(self, folder: Path, jobs: Sequence[Job], verb: str, specs: Sequence[Spec]) -> None:
        self.folder, self.jobs, self.verb = folder, jobs, verb
        self.stop_on_failure = any(spec.sweep.stop_on_failure for spec in specs)
        self._workloads = [spec.workload for spec in specs]
        self._earlier = read_points(folder)
        taken = {job.identity: self._earlier[job.identity] for job in jobs if job.identity in self._earlier}
        self.points = {
            identity: point for identity, point in taken.items() if point.settled and self._has_output(point)
        }

    def run(self) -> None:
        """Run what is missing; each failure is told at once."""
        todo = [job for job in self.jobs if job.identity not in self.points]
        kept = f", {len(self.points)} of them settled by an earlier run" if self.points else ""
        told = f"{counted(len(self.jobs), 'point')}, results in {self.folder}{kept}"
        print(f"deepinfer: {told}", file=sys.stderr, flush=True)
        for job in self.jobs:
            if job.identity in self.points:
                self._print(self.points[job.identity])
        at_once = max(min(Host().cores, len(todo)) if self.verb == "plan" else 1, 1)
        runs = run_jobs(
            todo, self.folder / "jobs", first_number=self._first_number(), at_once=at_once, go_on=self._go_on
        )
        with tqdm(
            total=len(self.jobs), initial=len(self.points), unit="point", disable=not sys.stderr.isatty(), leave=False
        ) as bar:
            try:
                for number, ended in enumerate(runs, 1):
                    self._take(ended)
                    bar.update()
                    if number == at_once:
                        _tell_length(ended.wall_s * (len(todo) - number) / at_once, len(todo) - number)
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
            if self.verb in TABLED or any(
                point.failed for point in points
            ):  # answers were printed, each with its values
                print(table(points, best), file=sys.stdout if self.verb in TABLED else sys.stderr)
            told = tell_picture(points, self.folder, self._workloads)
            if told:
                print(f"* on the Pareto frontier of {GPU} and {USER}; {told}")
        others = len(self._earlier.keys() - {job.identity for job in self.jobs})
        if others:
            told = f"{self.folder}/points.jsonl has {counted(others, 'point')} of other commands or files too, not shown here"
            print(f"deepinfer: {told}", file=sys.stderr)
        sys.stdout.flush()

    def _go_on(self) -> bool:
        return not (self.stop_on_failure and any(point.failed for point in self.points.values()))

    def _has_output(self, point: Point) -> bool:
        """Whether what its run answered can be told again."""
        return self.verb in TABLED or point.failed or (self.folder / point.printed).is_file()

    def _first_number(self) -> int:
        """After all that the folder knows of: the files of a run that was cut off are not written over either."""
        jobs = (int(path.stem) for path in (self.folder / "jobs").glob("*.log") if path.stem.isdigit())
        return 1 + max((*(point.number for point in self._earlier.values()), *jobs), default=0)

    def _take(self, ended: Ended) -> None:
        point = point_of(ended, with_figures=self.verb in TABLED)
        append_point(self.folder, point)
        self.points[point.identity] = point
        self._print(point)
        if point.failed:
            swept = " ".join(f"{key}={value}" for key, value in point.swept.items())
            tell_failure(ended, swept, self.folder)

    def _print(self, point: Point) -> None:
        """The answer of a verb whose runs have no figures, and on stderr whose it is."""
        path = self.folder / point.printed
        if self.verb not in TABLED and path.is_file():
            if point.swept and not point.failed:
                swept = " ".join(f"{key}={value}" for key, value in point.swept.items())
                print(f"deepinfer: run {point.number}: {swept}", file=sys.stderr, flush=True)
            sys.stdout.write(path.read_text("utf-8", "replace"))
            sys.stdout.flush()


def _tell_length(expected_s: float, number: int) -> None:
    if expected_s > LONG_S:
        told = f"about {expected_s / 60:.0f} minutes for the {counted(number, 'point')} that are left"
        tqdm.write(f"deepinfer: {told}; Ctrl-C keeps what is done", file=sys.stderr)
        sys.stderr.flush()
