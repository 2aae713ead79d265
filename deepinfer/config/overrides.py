"""Overrides on their way to Hydra: read one by one, so that each mistake is reported, and none changes its meaning."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any, get_origin

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from deepinfer.config.degrees import as_degrees
from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.keys import is_key, leaf_keys, places, text_keys
from deepinfer.config.misnamed import like, meant
from deepinfer.config.paths import user_path
from deepinfer.config.quoting import as_item, quoted, shell, typed
from deepinfer.config.specs import Spec

NO_HYDRA_SETTINGS = "Hydra's own settings would do nothing here"
WHY_NO_HYDRA_SETTINGS = "deepinfer composes with Hydra and does everything else itself"
NOTHING = ("null", "off", "no", "false", "0")
_ITEM = re.compile(r"""[^\[\]{},:='"\\$]+""")  # between the signs of Hydra's grammar
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_LONE_BACKSLASH = re.compile(r"(?<!\\)\\(?=['\"],|['\"]\])")  # before the quote that was meant to end an item
_WHERE = re.compile(r"(?:input|at:|at) '(.*?)'(?:\s|$)")  # the symbol that Hydra's grammar stumbled over


class Groups:
    """The groups and options there are: ours, and those of the user's own folder."""

    def __init__(self, loader: ConfigLoader, config_dir: str | None = None) -> None:
        self._loader = loader
        self._folder = user_path(config_dir, "--config-dir") if config_dir else None

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
    ready: list[str] = []
    problems: list[Problem] = []
    for text in overrides:
        override = _read(text, parser)
        if isinstance(override, Problem):
            problems.append(override)
            continue
        problem = _fault(text, override, groups, overrides)
        if problem is not None:
            problems.append(problem)
        else:
            ready.append(_forced(override, groups))
    return ready, problems


def _read(text: str, parser: OverridesParser) -> Override | Problem:
    """One override as Hydra reads it. Words with letters beyond ASCII are quoted first, since its grammar knows none."""
    try:
        for readable in (text, _with_quotes(text)):
            try:
                (override,) = parser.parse_overrides([readable])
            except HydraException as error:
                message = str(error)
            else:
                return override
    except (ValueError, RecursionError) as error:  # of the grammar's own actions: a range without end, a cast of text
        return Problem(asked=text, found=f"cannot be read: {str(error).strip().splitlines()[0]}")
    return _unreadable(text, message, parser)


def _with_quotes(text: str) -> str:
    key, equals, value = text.partition("=")
    return key + equals + _ITEM.sub(_quoted_item, value)


def _quoted_item(item: re.Match[str]) -> str:
    word = item[0].strip()
    return item[0].replace(word, f'"{word}"') if _BEYOND_ASCII.search(word) else item[0]


def _forced(override: Override, groups: Groups) -> str:
    key, text = override.key_or_group, override.input_line or ""
    if groups.has(key):
        return text.lstrip("+") if key in Spec.__struct_fields__ else text
    return "++" + text.lstrip("+")


def _fault(text: str, override: Override, groups: Groups, overrides: Sequence[str]) -> Problem | None:
    """What is wrong with an override that could be read, before anything is composed."""
    key = override.key_or_group
    if not key:
        return Problem(asked=text, found="nothing before the '='")
    if key.partition(".")[0].partition("/")[0] == "hydra":
        fix = "--config-dir …" if key == "hydra.searchpath" else ""
        return Problem(asked=text, found=NO_HYDRA_SETTINGS, why=WHY_NO_HYDRA_SETTINGS, fix=fix)
    if override.is_delete():
        fix = f"{key}=none" if groups.has(key) and "none" in groups.options(key) else ""
        return Problem(asked=text, found="nothing can be taken away", why="only exchanged", fix=fix)
    if override.is_sweep_override():
        verb = next((f"{other[5:]} " for other in overrides if other.startswith("task=")), "")
        return _sweep(text, verb, is_group=groups.has(key))
    if not groups.has(key):
        return _key_for_group(override, text, groups)
    value = override.value()
    if isinstance(value, list):
        first = f"{override.get_key_element().lstrip('+')}={value[0]}" if value else ""
        return Problem(asked=text, found="several options for one group", why=f"{key} takes one", fix=first)
    options = groups.options(key)
    if isinstance(value, dict):
        fix = " ".join(typed(f"{key}.{name}", _plain(item)) for name, item in value.items())
        return Problem(asked=text, found="a mapping for a group", why="set its keys one by one", fix=fix)
    if not isinstance(value, str) or value not in options:
        return _no_option(override, text, options, overrides)
    return None


def _key_for_group(override: Override, text: str, groups: Groups) -> Problem | None:
    """Groups and keys look alike: a slash where a dot belongs, and a group's `kind` set in place of its option."""
    key, value = override.key_or_group, text.partition("=")[2]
    dotted = key.replace("/", ".")
    group, _, name = dotted.rpartition(".")
    fix = ""
    if name == "kind" and group in Spec.__struct_fields__:
        why = f"{group} is a group, whose options are chosen by name"
        fix = f"{group}={value}" if value in groups.options(group) else ""
        return Problem(asked=text, found="a kind alone, without the keys of its option", why=why, fix=fix)
    if dotted == key:
        return None
    if group in Spec.__struct_fields__ and name in groups.options(group):
        fix = f"{group}={name}"
    elif value in groups.options(name):
        fix = f"{name}@{dotted}={value}" if f"{name}@{dotted}" in places() else f"{name}={value}"
    elif dotted in leaf_keys():
        fix = shell(f"{dotted}={value}")
    why = "a slash stands between folders of options, a dot before a key"
    return Problem(asked=text, found=f"no group {key!r}", why=why, fix=fix)


def _no_option(override: Override, text: str, options: list[str], overrides: Sequence[str]) -> Problem:
    word = text.partition("=")[2]
    if word in options:
        found, why = f"{word!r} is read as something else than text", "in quotes it is the name of the option"
        return Problem(asked=text, found=found, why=why, fix=shlex.quote(quoted(text.partition("=")[0], word)))
    how, other = like(override.key_or_group, word) if word else ("", "")
    close = "none" if word in NOTHING and "none" in options else nearest(word, options, cutoff=0.75 if other else 0.6)
    close = close or other
    choice = override.get_key_element().lstrip("+")
    other_degree, degrees = as_degrees(choice, word, options, overrides)
    if choice == "parallel" and not any(override.lstrip("+").startswith("cluster=") for override in overrides):
        degrees = degrees.removeprefix("parallel=single ")  # which it is where no cluster says otherwise
    return Problem(
        asked=text,
        found=f"no option {word!r} in group {override.key_or_group}" if word else "no option is named",
        why="; ".join(filter(None, (f"there are {listed(options)}", how, other_degree))),
        fix=degrees or (f"{choice}={close}" if close else ""),
    )


def _sweep(text: str, verb: str, *, is_group: bool) -> Problem:
    key, _, value = text.partition("=")
    name = key.lstrip("+")
    kind = leaf_keys().get(name)
    if not is_group and not is_key(name):
        return _no_such_key(text)
    if get_origin(kind) is tuple:
        fix = shell(f"{key}=[{value}]")
    elif kind is str:
        fix = shell(quoted(key, value))
    else:
        fix = f"deepinfer -m {verb}{shell(text)}" if text.isprintable() else ""
    return Problem(asked=text, found="a comma or a range means a sweep", why="and -m was not given", fix=fix)


def _no_such_key(text: str) -> Problem:
    """An unknown key whose value cannot be read as one value."""
    key, _, value = text.partition("=")
    name = key.lstrip("+")
    close = nearest(name, leaf_keys())
    why, fix = meant(name, value)
    return Problem(
        asked=text,
        found=f"the configuration has no key {name!r}",
        why=why,
        fix=fix or (typed(close, value) if close else ""),
    )


def _unreadable(text: str, message: str, parser: OverridesParser) -> Problem:
    """Name the symbol, never the grammar's token class, and show a form that can be read."""
    key, _, value = text.partition("=")
    name = key.lstrip("+").partition("@")[0]
    if not name:
        return Problem(asked=text, found="nothing before the '='")
    if name not in Spec.__struct_fields__ and not is_key(name) and not name.startswith("~"):
        return _no_such_key(text)
    where = _WHERE.search(message)
    symbol = where.group(1) if where else ""
    candidates = [key + "=" + _LONE_BACKSLASH.sub(r"\\\\", value)] if _LONE_BACKSLASH.search(value) else []
    is_list = get_origin(leaf_keys().get(key.lstrip("+"))) is tuple
    if is_list and value[:1] == "[" and value[-1:] == "]":
        candidates.append(f"{key}=[{','.join(as_item(item.strip()) for item in value[1:-1].split(','))}]")
    candidates.append(f"{key}=[{quoted(key, value)[len(key) + 1 :]}]" if is_list else quoted(key, value))
    fix = next((shlex.quote(candidate) for candidate in candidates if _is_readable(candidate, parser)), "")
    found = f"cannot be read at {symbol!r}" if symbol and symbol != "<EOF>" else "cannot be read to its end"
    why = "text with such symbols is quoted, once more for the shell"
    return Problem(asked=text, found=found, why=why, fix=fix)


def _is_readable(text: str, parser: OverridesParser) -> bool:
    try:
        parser.parse_overrides([text])
    except HydraException:
        return False
    return True


def _plain(value: Any) -> Any:
    """A value of Hydra's parser without the quotes that it remembers."""
    return value.text if isinstance(value, QuotedString) else value


def as_override(key: str, value: Any) -> str:
    """A Python keyword as an override: "__" for each dot, values as YAML spells them."""
    text = {None: "null", True: "true", False: "false"}[value] if isinstance(value, bool | None) else value
    name = key.replace("__", ".")
    if isinstance(text, dict) and name in text_keys():  # a schema, which that key takes as JSON
        text = json.dumps(text, ensure_ascii=False)
    return f"{name}={text}"
