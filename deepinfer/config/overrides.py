"""Overrides on their way to Hydra: read one by one, so that each mistake is reported, and none changes its meaning."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.keys import leaf_keys
from deepinfer.config.specs import Spec

_NOTHING = ("null", "off", "no", "false", "0")
_WHERE = re.compile(r"(?:input|at:|at) '(.*?)'(?:\s|$)")  # the symbol that Hydra's grammar stumbled over


class Groups:
    """The groups and options there are: ours, and those of the user's own folder."""

    def __init__(self, loader: ConfigLoader, config_dir: str | None = None) -> None:
        self._loader = loader
        self._folder = Path(config_dir).expanduser() if config_dir else None

    def has(self, group: str) -> bool:
        ours = group in Spec.__struct_fields__
        return ours or (self._folder is not None and bool(group) and (self._folder / group).is_dir())

    def options(self, group: str) -> list[str]:
        ours = self._loader.get_group_options(group) if group in Spec.__struct_fields__ else []
        theirs = sorted(path.stem for path in (self._folder / group).glob("*.yaml")) if self._folder else []
        return [*ours, *(name for name in theirs if name not in ours)]


def prepare(overrides: Sequence[str], groups: Groups) -> tuple[list[str], list[Problem]]:
    """Overrides as Hydra shall see them, and what is wrong with the others.

    A value override becomes a forced one (`++`): Hydra's own check knows no near misses, and `+` would slip past it;
    the conversion into a Spec refuses every key that does not exist.
    """
    parser = OverridesParser.create()
    options_known = not any(text.lstrip("+").startswith("hydra.searchpath") for text in overrides)
    ready: list[str] = []
    problems: list[Problem] = []
    for text in overrides:
        try:
            (override,) = parser.parse_overrides([text])
        except HydraException as error:
            problems.append(_unreadable(text, str(error), parser))
            continue
        problem = _fault(text, override, groups, options_known)
        if problem is not None:
            problems.append(problem)
        else:
            ready.append(_forced(text, override, groups))
    return ready, problems


def _forced(text: str, override: Override, groups: Groups) -> str:
    key = override.key_or_group
    if key.startswith(("hydra.", "hydra/")):
        return text
    if groups.has(key):
        return text.lstrip("+") if key in Spec.__struct_fields__ else text
    return "++" + text.lstrip("+")


def _fault(text: str, override: Override, groups: Groups, options_known: bool) -> Problem | None:
    """What is wrong with an override that could be read, before anything is composed."""
    key = override.key_or_group
    if not key:
        return Problem(asked=text, found="nothing before the '='")
    if override.is_delete():
        fix = f"{key}=none" if groups.has(key) and "none" in groups.options(key) else ""
        return Problem(asked=text, found="nothing can be taken away", why="only exchanged", fix=fix)
    if override.is_sweep_override():
        return _sweep(text, groups.has(key))
    if not groups.has(key):
        return None
    value = override.value()
    if isinstance(value, list):
        first = f"{override.get_key_element().lstrip('+')}={value[0]}" if value else ""
        return Problem(asked=text, found="several options for one group", why=f"{key} takes one", fix=first)
    options = groups.options(key)
    if isinstance(value, dict):
        fix = " ".join(f"{key}.{name}={item}" for name, item in value.items())
        return Problem(asked=text, found="a mapping for a group", why="set its keys one by one", fix=fix)
    if not isinstance(value, str) or (options_known and value not in options):
        return _no_option(override, text, options)
    return None


def _no_option(override: Override, text: str, options: list[str]) -> Problem:
    word = text.partition("=")[2]
    close = "none" if word in _NOTHING and "none" in options else nearest(word, options)
    return Problem(
        asked=text,
        found=f"no option {word!r} in group {override.key_or_group}" if word else "no option is named",
        why=f"there are {listed(options)}",
        fix=f"{override.get_key_element().lstrip('+')}={close}" if close else "",
    )


def _sweep(text: str, is_group: bool) -> Problem:
    key, _, value = text.partition("=")
    kind = leaf_keys().get(key.lstrip("+"))
    if is_group:
        fix = f"{key}={value.split(',')[0]}"
    elif get_origin(kind) is tuple:
        fix = f"{key}=[{value}]"
    elif kind is str:
        fix = shlex.quote(quoted(key, value))
    else:
        fix = f"deepinfer -m {text}"
    return Problem(asked=text, found="a comma or a range means a sweep", why="and -m was not given", fix=fix)


def _unreadable(text: str, message: str, parser: OverridesParser) -> Problem:
    """Name the symbol, never the grammar's token class, and show a form that can be read."""
    key, _, value = text.partition("=")
    where = _WHERE.search(message)
    symbol = where.group(1) if where else ""
    candidate = quoted(key, value)
    try:
        parser.parse_overrides([candidate])
        fix = shlex.quote(candidate)
    except HydraException:
        fix = ""
    found = f"cannot be read at {symbol!r}" if symbol and symbol != "<EOF>" else "cannot be read to its end"
    return Problem(asked=text, found=found, why="text with such symbols is quoted, once more for the shell", fix=fix)


def as_override(key: str, value: Any) -> str:
    """A Python keyword as an override: "__" for each dot, values as YAML spells them."""
    text = {None: "null", True: "true", False: "false"}[value] if isinstance(value, bool | None) else value
    return f"{key.replace('__', '.')}={text}"


def quoted(key: str, value: str) -> str:
    """An override whose value Hydra reads as exactly this text."""
    bare = value
    for quote in ("'", '"'):
        if len(value) > 1 and value[0] == value[-1] == quote:
            bare = value[1:-1]
    escaped = re.sub(r"(\\*)(\"|$)", lambda m: m.group(1) * 2 + ("\\" + m.group(2) if m.group(2) else ""), bare)
    return f'{key}="{escaped}"'
