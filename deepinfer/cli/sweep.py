"""-m: every point of a sweep is a process of its own, and none stops the others."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from msgspec import structs

from deepinfer.cli.help import options
from deepinfer.cli.main import checked
from deepinfer.config.argv import CommandLine
from deepinfer.config.errors import ExitCode, Problem, Refused


def sweep(line: CommandLine) -> int:
    """Run the product of all swept values, in the order typed, each by `python -m deepinfer` here.

    Returns the lowest failing exit class. Raises Refused before the first run when any single value is wrong.
    """
    axes = [_axis(text) for text in line.overrides]
    _check_axes(line, axes)
    points = list(product(*axes))
    codes = []
    for number, point in enumerate(points, 1):
        print(f"deepinfer: run {number} of {len(points)}: {' '.join(point)}", file=sys.stderr, flush=True)
        codes.append(
            subprocess.run([sys.executable, "-m", "deepinfer", *_arguments(line, point)], check=False).returncode
        )
        if codes[-1]:
            print(f"deepinfer: run {number} ended with exit code {codes[-1]}", file=sys.stderr, flush=True)
    failed = [code for code in codes if code]
    print(f"deepinfer: {len(points) - len(failed)} of {len(points)} runs ended well", file=sys.stderr)
    return min(failed, key=lambda code: (code == ExitCode.OTHER, code), default=0)


def _axis(text: str) -> list[str]:
    """The overrides that one override stands for: one for each value it sweeps over."""
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException:
        return [text]  # the check of the points says what is wrong with it
    if not override.is_sweep_override():
        return [text]
    key = override.get_key_element()
    if key.startswith("hydra"):
        why = "runs of one sweep share Hydra's own settings"
        raise Refused([Problem(asked=text, found="Hydra's settings cannot be swept over", why=why)])
    value: Any = override.value()
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(options(override.key_or_group))]
    return [f"{key}={item}" for item in override.sweep_string_iterator()]


def _check_axes(line: CommandLine, axes: Sequence[list[str]]) -> None:
    """Check each value once, beside the first value of every other axis: a sum of checks for a product of runs."""
    first = [axis[0] for axis in axes]
    problems: list[Problem] = []
    for index, axis in enumerate(axes):
        for text in axis if len(axis) > 1 else []:
            problems += _problems(line, [*first[:index], text, *first[index + 1 :]])
    if all(len(axis) == 1 for axis in axes):
        problems += _problems(line, first)
    if problems:
        raise Refused(dict.fromkeys(problems))


def _problems(line: CommandLine, point: Sequence[str]) -> Sequence[Problem]:
    try:
        checked(structs.replace(line, overrides=tuple(point)))
    except Refused as refused:
        return refused.problems
    return ()


def _arguments(line: CommandLine, point: Sequence[str]) -> list[str]:
    folder = line.flag_value("--config-dir", "-cd")
    flags = ["--config-dir", folder] if folder else []
    strings = [f"{key}={value}" for key, value in (line.words | line.texts).items()]
    return [*flags, *point, *strings]
