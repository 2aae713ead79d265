"""`deepinfer tune sweep=…`: search options and values for the best figures, estimated from plans or measured by bench.

Everything lands in OUT: a line for each point (points.jsonl), Optuna's journal, a picture, and an option file for each
point that no other beats. The same command with the same out= goes on where it stopped.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer import __version__
from deepinfer.cli.help import options
from deepinfer.cli.inputs import inputs_digest
from deepinfer.cli.out_folder import locked_folder, naming
from deepinfer.cli.points_file import exit_code_of
from deepinfer.cli.streams import printable_json
from deepinfer.cli.sweep_points import files_digest
from deepinfer.cli.sweep_table import pareto_best, table
from deepinfer.cli.sweep_told import counted, tell_picture
from deepinfer.cli.tune_best import write_options
from deepinfer.cli.tune_journal import JOURNAL
from deepinfer.cli.tune_recipe import as_typed, refuse_objectives
from deepinfer.cli.tune_space import space_of
from deepinfer.cli.tune_study import Searching
from deepinfer.cli.tune_trial import Bencher, Planner, fixed_overrides
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.config.paths import user_path
from deepinfer.config.sweeps import Search

if TYPE_CHECKING:
    from deepinfer.cli.points_file import Point
    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec

SHOWN = 20  # best points that are told; the others are in the folder
_SIGNS = {"maximize": 1, "minimize": -1}


def run(spec: Spec, invocation: Invocation) -> int:
    """Search and report. Raises Refused for a recipe that makes no sense, KeyboardInterrupt with all that is done kept."""
    search = spec.sweep
    if not isinstance(search, Search):
        recipes = [name for name in options("sweep") if name != "none"]
        why, fix = f"there are {listed(recipes)}", f"tune sweep={recipes[0]}"
        raise Refused([Problem(asked="tune", found="no recipe is chosen", why=why, fix=fix)])
    if invocation.format not in ("text", "json"):
        asked = f"format={invocation.format}"
        raise Refused([Problem(asked=asked, found="tune prints text or json", fix="format=json")])
    search, notes = as_typed(search, invocation.overrides)
    for note in notes:
        print(f"deepinfer: {note}", file=sys.stderr)
    space = space_of(search, invocation.overrides, _own_options(invocation.config_dir))
    refuse_objectives(search)
    with locked_folder(invocation.out) as folder:
        evaluate = Planner(invocation) if search.over == "plan" else Bencher(invocation, folder)
        with naming(folder / JOURNAL):
            searching = Searching(folder, search, space, evaluate, _asked(search, spec, invocation))
        return _searched(searching, spec, invocation)


def _searched(searching: Searching, spec: Spec, invocation: Invocation) -> int:
    try:
        with naming(searching.folder / JOURNAL):
            _search(searching)
    except KeyboardInterrupt:
        kept = f"{searching.number_done} of {counted(searching.total, 'point')} are kept"
        print(f"deepinfer: {kept}; the same command with out={searching.folder} goes on", file=sys.stderr)
        _report(searching, spec, invocation)
        raise
    return _report(searching, spec, invocation)


def _own_options(config_dir: str | None) -> list[str]:
    """Options of the user's own folder, as "group/option"."""
    folder = user_path(config_dir, "--config-dir") if config_dir else None
    return [path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml")] if folder else []


def _asked(search: Search, spec: Spec, invocation: Invocation) -> dict[str, Any]:
    """What may not change while a search goes on; its length may."""
    recipe = json.loads(msgspec.json.encode(search))  # as the journal gives it back
    parts = ("over", "choices", "ranges", "log_ranges", "objectives", "seed")
    return {name: recipe[name] for name in parts} | {
        "overrides": list(fixed_overrides(invocation.overrides, with_task_keys=True)),
        "texts": invocation.texts,
        "option files": files_digest(invocation.config_dir),
        "input files": inputs_digest([spec], {}),
        "version": __version__,
    }


def _search(searching: Searching) -> None:
    size = searching.space.size
    points = counted(size, "point") if size else "a space with ranges"
    done = f", {searching.number_at_start} of them by earlier runs" if searching.number_at_start else ""
    told = f"{points}, {searching.total} to try{done}, results in {searching.folder}"
    print(f"deepinfer: {told}", file=sys.stderr, flush=True)
    quiet = not sys.stderr.isatty()
    with tqdm(
        total=searching.total, initial=searching.number_at_start, unit="point", disable=quiet, leave=False
    ) as bar:
        searching.run(lambda _: bar.update())
    left = searching.total - searching.number_done
    if left:
        why = (
            f"sweep.stop_after_s={searching.search.stop_after_s:g} ended the search"
            if searching.out_of_time
            else "draws no longer bring new points"
        )
        print(f"deepinfer: {why}; {counted(left, 'point')} of {searching.total} were not tried", file=sys.stderr)


def _report(searching: Searching, spec: Spec, invocation: Invocation) -> int:
    """The best points and what to type for each; the exit code of the whole."""
    search, folder = searching.search, searching.folder
    points = searching.points
    signs = [_SIGNS[direction] for direction in search.objectives.values()]
    best = _first_of_equals([points[index] for index in pareto_best(points, list(search.objectives), signs)], search)
    failed = [point for point in points if point.failed]
    _tell_failed(failed, len(points))
    if not best:
        return exit_code_of(failed)
    first, direction = next(iter(search.objectives.items()))
    best.sort(key=lambda point: point.value(first) or 0.0, reverse=direction == "maximize")
    if invocation.format == "json":
        for point in best:
            print(printable_json(msgspec.json.encode(point).decode()))
        tell_picture(points, folder, [spec.workload])
        return ExitCode.OK
    shown = best[:SHOWN]
    print(table(shown))
    fixed = fixed_overrides(invocation.overrides, with_task_keys=search.over == "bench")
    print(f"\nto type, best {first} first:")
    for point in shown:
        print(f"  deepinfer {shlex.join([search.over, *fixed, *point.overrides])}")
    for line in _files(best, shown, searching, spec, invocation):
        print(line)
    return ExitCode.OK


def _first_of_equals(best: list[Point], search: Search) -> list[Point]:
    """One of the points that are worth the same: the one with the smallest memory, and of those the first."""
    found: dict[tuple[float | None, ...], Point] = {}
    for point in sorted(best, key=lambda point: (point.facts.get("memory_bytes", 0.0), point.number)):
        found.setdefault(tuple(point.value(name) for name in search.objectives), point)
    return list(found.values())


def _files(
    best: list[Point], shown: list[Point], searching: Searching, spec: Spec, invocation: Invocation
) -> list[str]:
    """Sentences about what lies in the folder."""
    folder = searching.folder
    many = "1 point is" if len(best) == 1 else f"{len(best)} points are"
    beaten = f"{many} beaten by none of {len(searching.points)}, equal ones counted once"
    lines = [f"{beaten}; all are in {folder}/points.jsonl"]
    if len(best) > len(shown):
        lines[0] += f", the first {len(shown)} are shown"
    picture = tell_picture(searching.points, folder, [spec.workload])
    lines += [f"picture: {picture}"] if picture else []
    if invocation.config_dir is None:
        names = write_options(folder, best, searching.search.objectives, invocation)
        lines.append(f"as options: deepinfer {searching.search.over} --config-dir {folder} +best={names[0]}")
    return lines


def _tell_failed(failed: list[Point], number: int) -> None:
    codes = Counter(point.exit_code for point in failed)
    if failed:
        each = ", ".join(f"{count} with exit code {code}" for code, count in sorted(codes.items()))
        told = f"{len(failed)} of {counted(number, 'point')} cannot be planned or run: {each}; the first: {failed[0].refusal}"
        print(f"deepinfer: {told}", file=sys.stderr)
