"""The best points of a search as option files: `--config-dir OUT +best=trial_7` is all of point 7."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from deepinfer.cli.out_folder import naming
from deepinfer.cli.sweep_table import number
from deepinfer.cli.tune_space import is_group
from deepinfer.cli.tune_trial import fixed_overrides

if TYPE_CHECKING:
    from deepinfer.cli.points_file import Point
    from deepinfer.config.argv import Invocation

GROUP = "best"


def write_options(folder: Path, best: Sequence[Point], objectives: Iterable[str], invocation: Invocation) -> list[str]:
    """Write `best/trial_N.yaml` for each point, in place of those that an earlier run left; returns their names."""
    target = folder / GROUP
    names = []
    with naming(target):
        target.mkdir(exist_ok=True)
        for old in target.glob("trial_*.yaml"):
            old.unlink()
    for point in best:
        name = f"trial_{point.number}"
        figures = ", ".join(f"{each} {number(point.value(each) or 0.0)}" for each in objectives)
        with naming(target / f"{name}.yaml"):
            (target / f"{name}.yaml").write_text(_text(point, figures, invocation), "utf-8")
        names.append(name)
    return names


def _text(point: Point, figures: str, invocation: Invocation) -> str:
    """Options go into a defaults list, values below it, just as typed."""
    chosen: list[Any] = []
    data: dict[str, Any] = {}
    for text in fixed_overrides(invocation.overrides):
        (override,) = OverridesParser.create().parse_overrides([text])
        _put(override.key_or_group if override.package is None else _key(text), override.value(), chosen, data)
    for key, value in (invocation.texts | point.swept).items():
        _put(key, value, chosen, data)
    label = " and ".join(sorted({figure.said for figure in point.figures}))
    head = f"# @package _global_\n# {figures} ({label}): one of the best of a search.\n"
    body: dict[str, Any] = {"defaults": chosen} if chosen else {}
    return head + yaml.safe_dump(body | data, sort_keys=False, allow_unicode=True)


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def _put(key: str, value: Any, chosen: list[Any], data: dict[str, Any]) -> None:
    if is_group(key):
        chosen.append({f"override /{key}": value})
        return
    *path, last = key.split(".")
    for name in path:
        data = data.setdefault(name, {})
    data[last] = value
