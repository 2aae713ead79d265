"""-m: from overrides that sweep to the points they stand for, each of its values checked before the first run."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException
from msgspec import Struct, structs
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer import __version__
from deepinfer.cli.help import options
from deepinfer.config.argv import CommandLine
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.paths import user_path
from deepinfer.config.specs import Spec

MOST_POINTS = 100_000
MOST_CHECKED = 64  # values of an axis; each takes a composition, about 0.15 s
MOST_QUIET = 20  # values whose check needs no word
Check = Callable[[CommandLine], Any]


class Axis(Struct, frozen=True, kw_only=True):
    """One override as typed, and the overrides that it stands for: one for each value."""

    key: str
    overrides: tuple[str, ...]
    swept: bool  # whether a sweep was written, be it of a single value


class Job(Struct, frozen=True, kw_only=True):
    """One point: what a process of its own is started with, and what it is called in the table."""

    identity: str  # equal for equal work: arguments, configuration files, input files and version
    swept: dict[str, str]  # key → value
    overrides: tuple[str, ...]
    arguments: tuple[str, ...]  # of `python -m deepinfer`


def axes_of(line: CommandLine) -> list[Axis]:
    """Every override of a line with the values it sweeps over, in the order typed. Raises Refused for Hydra's own keys."""
    folder = line.flag_value("--config-dir", "-cd")
    return [_axis(text, user_path(folder, "--config-dir") if folder else None) for text in line.overrides]


def _axis(text: str, folder: Path | None) -> Axis:
    key = text.partition("=")[0]
    try:
        (override,) = OverridesParser.create().parse_overrides([text])
        if not override.is_sweep_override():
            return Axis(key=key, overrides=(text,), swept=False)
    except (HydraException, ValueError, RecursionError):
        return Axis(key=key, overrides=(text,), swept=False)  # the check of the points says what is wrong with it
    key = override.get_key_element()
    if key.startswith("hydra"):
        why = "runs of one sweep share Hydra's own settings"
        raise Refused([Problem(asked=text, found="Hydra's settings cannot be swept over", why=why)])
    value: Any = override.value()
    if isinstance(value, Glob):
        group = override.key_or_group
        names = value.filter(_options(group, folder))
        if not names:
            why = f"there are {', '.join(_options(group, folder)) or 'none'}"
            raise Refused([Problem(asked=text, found="no option matches", why=why)])
    else:
        names = list(islice(override.sweep_string_iterator(), MOST_POINTS + 1))
    return Axis(key=key.lstrip("+"), overrides=tuple(f"{key}={name}" for name in names), swept=True)


def _options(group: str, folder: Path | None) -> list[str]:
    """Options of a group, ours and those of the user's own folder."""
    ours = options(group) if group in Spec.__struct_fields__ else []
    theirs = {path.stem for path in (folder / group).glob("*.yaml")} if folder else set()
    return sorted({*ours, *theirs})


def check_axes(line: CommandLine, axes: Sequence[Axis], check: Check) -> None:
    """Refuse a value that is wrong whatever stands beside it: a sum of checks for a product of runs.

    A value is held against the first values of all other axes, and where that fails against their last ones too: what only
    some combinations cannot have is a row of the table. Of an axis of more than MOST_CHECKED values the first and last
    ones are checked; the others show what they are in their runs.
    """
    first = [axis.overrides[0] for axis in axes]
    last = [axis.overrides[-1] for axis in axes]
    problems: list[Problem] = []
    values = [(index, text) for index, axis in enumerate(axes) for text in _to_check(axis)]
    if len(values) > MOST_QUIET:
        print(f"deepinfer: {len(values)} values are checked before the first run", file=sys.stderr, flush=True)
    for index, text in tqdm(values, unit="value", disable=not sys.stderr.isatty(), leave=False):
        early, late = ([*others[:index], text, *others[index + 1 :]] for others in (first, last))
        problems += _problems(line, early, check) and _problems(line, late, check)
    if all(len(axis.overrides) == 1 for axis in axes):
        problems += _problems(line, first, check)
    if problems:
        raise Refused(dict.fromkeys(problems))


def _to_check(axis: Axis) -> Sequence[str]:
    texts = axis.overrides
    if len(texts) == 1:
        return ()
    if len(texts) <= MOST_CHECKED:
        return texts
    told = (
        f"{axis.key} has {len(texts):,} values: the first and the last {MOST_CHECKED // 2} are checked before the runs"
    )
    print(f"deepinfer: {told}", file=sys.stderr, flush=True)
    return [*texts[: MOST_CHECKED // 2], *texts[-(MOST_CHECKED // 2) :]]


def _problems(line: CommandLine, point: Sequence[str], check: Check) -> Sequence[Problem]:
    try:
        check(structs.replace(line, overrides=tuple(point)))
    except Refused as refused:
        return refused.problems
    return ()


def jobs_of(line: CommandLine, axes: Sequence[Axis], words: dict[str, str], inputs: str = "") -> list[Job]:
    """Every point of the product, in the order typed, equal ones once. `words` are the strings that each run gets,
    `inputs` a digest of the other files that they read. Raises Refused for more than MOST_POINTS."""
    number = prod(len(axis.overrides) for axis in axes)
    if number > MOST_POINTS:
        why, fix = f"-m makes at most {MOST_POINTS:,}", "tune sweep=… searches without trying all"
        raise Refused([Problem(asked="-m", found=f"{number:,} points", why=why, fix=fix)])
    folder = line.flag_value("--config-dir", "-cd")
    flags = ["--config-dir", folder] if folder else []
    tree = files_digest(folder) + inputs
    found: dict[str, Job] = {}
    for point in product(*(axis.overrides for axis in axes)):
        strings = [f"{key}={value}" for key, value in (words | line.texts).items()]
        arguments = (*flags, *point, *strings)
        swept = {axis.key: text.partition("=")[2] for axis, text in zip(axes, point) if axis.swept}
        identity = identity_of(arguments, tree)
        found.setdefault(identity, Job(identity=identity, swept=swept, overrides=point, arguments=arguments))
    return list(found.values())


def identity_of(arguments: Sequence[str], tree: str) -> str:
    """What makes two runs the same work."""
    return hashlib.sha256("\0".join([__version__, tree, *arguments]).encode("utf-8", "surrogateescape")).hexdigest()[
        :16
    ]


def files_digest(config_dir: str | None) -> str:
    """A digest of all option files, ours and the user's own: an edited file makes another point."""
    digest = hashlib.sha256()
    for root in [str(files("deepinfer.conf")), *([config_dir] if config_dir else [])]:
        folder = user_path(root, "--config-dir")
        for path in sorted(folder.rglob("*.yaml")):
            if path.is_file():
                name = path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
                digest.update(name + b"\0" + path.read_bytes())
    return digest.hexdigest()
