"""The user's own files that a composition takes, looked at before Hydra reads them: all that is wrong at once.

Hydra stops at the first thing that it cannot take. Here every defaults list of the user's is gone through; for an option
that does not exist another one stands in, so that the rest of the file can still be checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from msgspec import Struct

from deepinfer.config.convert import MANDATORY
from deepinfer.config.degrees import as_degrees
from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.misnamed import like, options_of
from deepinfer.config.overrides import NOTHING
from deepinfer.config.own_nodes import OwnFile, content_problems, kind_of_node, number_problems, read_own
from deepinfer.config.specs import Spec


class Survey(Struct, frozen=True, kw_only=True):
    """What is wrong with the files; the overrides that choose one which cannot be composed; overrides to compose with
    in place of options that do not exist."""

    problems: tuple[Problem, ...] = ()
    unusable: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()


class _Entry(Struct, frozen=True, kw_only=True):
    """One entry of a defaults list: `override /hardware@deploy.prefill.hardware: h200`, or a bare name."""

    node: yaml.Node
    group: str  # without its package; empty for a bare name, which is an option of the file's own group
    place: str  # group, or group@package
    option: yaml.Node
    is_override: bool

    @property
    def name(self) -> str:
        return str(self.option.value)


def survey(folder: Path, overrides: Sequence[str]) -> Survey:
    """Look at every file of `folder` that the `overrides` choose, or that such a file builds on."""
    problems: list[Problem] = []
    unusable: list[str] = []
    stand_ins: dict[str, str] = {}
    chosen = dict(text.partition("=")[::2] for text in overrides if not text.startswith("+"))
    for override in overrides:
        group, _, option = override.partition("=")
        for file in _taken(folder, group.partition("@")[0], option):
            hopeless = list(content_problems(file))
            entries = [] if hopeless else list(_entries(file))
            hopeless += [problem for entry in entries for problem in _misplaced(file, entry)]
            hopeless += _no_groups(folder, file)
            wrong = [entry for entry in entries if entry.place not in chosen and _is_wrong(folder, entry)]
            for entry in wrong:
                problem = _no_option(folder, file, entry, overrides)
                problems.append(problem)
                stand_ins[entry.place] = nearest(entry.name, options_of(entry.group)) or options_of(entry.group)[0]
                hopeless += [problem] if kind_of_node(entry.option) != "str" else []
            problems += [problem for problem in hopeless if problem not in problems]
            problems += number_problems(file)
            unusable += [override] if hopeless else []
    others = tuple(f"{place}={option}" for place, option in stand_ins.items())
    return Survey(problems=tuple(dict.fromkeys(problems)), unusable=tuple(unusable), stand_ins=others)


def shadowed(folder: Path, choices: Mapping[str, object]) -> list[Problem]:
    """A problem for each chosen option that both ship with deepinfer and lie in the user's folder: theirs is not read."""
    problems = {}
    for place, option in choices.items():
        group = place.partition("@")[0]
        file = folder / group / f"{option}.yaml"
        if isinstance(option, str) and option in options_of(group) and file.is_file():
            found = f"deepinfer has an option {option!r} of its own, and that one is taken"
            why = "a file of yours needs a name of its own"
            asked = f"{group}={option}"
            problems[asked] = Problem(asked=asked, found=found, why=why, file=str(file), line=1)
    return list(problems.values())


def _taken(folder: Path, group: str, option: str) -> Iterator[OwnFile]:
    """The file of an option, where it is one of the user's own, and those of the group that it builds on."""
    waiting, seen = [option], set(options_of(group))
    while waiting:
        name = waiting.pop()
        path = folder / group / f"{name}.yaml"
        if group not in Spec.__struct_fields__ or name in seen or "/" in name or not path.is_file():
            continue
        seen.add(name)
        file = read_own(path, group)
        if file is not None:
            yield file
            waiting += [entry.name for entry in _entries(file) if not entry.group]


def _entries(file: OwnFile) -> Iterator[_Entry]:
    """The entries of a file's defaults list that can be made out; Hydra says what is wrong with others."""
    pairs = file.root.value if isinstance(file.root, yaml.MappingNode) else ()
    for item in next((value.value for key, value in pairs if key.value == "defaults"), ()):
        if isinstance(item, yaml.ScalarNode):
            yield _Entry(node=item, group="", place="", option=item, is_override=False)
        elif isinstance(item, yaml.MappingNode):
            for key, value in item.value:
                if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                    words = key.value.removeprefix("optional ").strip()
                    place = words.removeprefix("override ").strip()
                    if place.startswith("/"):
                        place, is_override = place[1:], words.startswith("override ")
                        group = place.partition("@")[0]
                        yield _Entry(node=key, group=group, place=place, option=value, is_override=is_override)


def _misplaced(file: OwnFile, entry: _Entry) -> Iterator[Problem]:
    """Entries whose group Hydra would not look for, or would look for in vain."""
    if not entry.group or entry.group.startswith("hydra") or not file.is_global:
        return
    asked, groups = f"{entry.node.value}: {entry.name}", Spec.__struct_fields__
    line = f"- override /{entry.place}: {entry.name}"
    if entry.group not in groups:
        close = nearest(entry.group, groups)
        fix = f"- override /{close}: {entry.name}" if close else ""
        yield file.problem(entry.node, asked, f"there is no group {entry.group!r}", f"there are {listed(groups)}", fix)
    elif entry.place == file.group:
        found, why = f"a file of {file.group} cannot choose another {file.group}", "it is the one that was chosen"
        yield file.problem(entry.node, asked, found, f"{why}; the bare name builds on another one", f"- {entry.name}")
    elif not entry.is_override:
        found, why = f"an option of {entry.group} is chosen already", "a file of yours exchanges it"
        yield file.problem(entry.node, asked, found, why, line)


def _no_groups(folder: Path, file: OwnFile) -> Iterator[Problem]:
    """Groups that a file sets to a word or a list rather than to keys; a word may be meant to choose an option."""
    pairs = file.root.value if isinstance(file.root, yaml.MappingNode) and file.is_global else ()
    for key, value in pairs:
        group, word = str(key.value), value.value if isinstance(value, yaml.ScalarNode) else "[…]"
        if group not in Spec.__struct_fields__ or isinstance(value, yaml.MappingNode) or "${" in word:
            continue
        close = nearest(word, _options(folder, group))
        fix = f"- override /{group}: {close}" if close else ""
        why = "an option is chosen in the defaults list"
        yield file.problem(key, f"{group}: {word or 'null'}", f"{group} is a group, so its keys belong here", why, fix)


def _options(folder: Path, group: str) -> list[str]:
    theirs = sorted(path.stem for path in (folder / group).glob("*.yaml"))
    return [*options_of(group), *(name for name in theirs if name not in options_of(group))]


def _is_wrong(folder: Path, entry: _Entry) -> bool:
    """Whether an entry names no option of its group, or names it as something that is not text to YAML."""
    if entry.group not in Spec.__struct_fields__:
        return False
    return kind_of_node(entry.option) != "str" or entry.name not in _options(folder, entry.group)


def _no_option(folder: Path, file: OwnFile, entry: _Entry, overrides: Sequence[str]) -> Problem:
    options = _options(folder, entry.group)
    asked, kind = f"{entry.place}={entry.name}", kind_of_node(entry.option)
    if kind != "str" and entry.name in options:
        found, why = f"YAML reads {entry.name} as something else than text", "in quotes it is the name of the option"
        return file.problem(entry.node, asked, found, why, f'- override /{entry.place}: "{entry.name}"')
    how, other = like(entry.group, entry.name)
    nothing = entry.name in NOTHING and "none" in options
    close = "none" if nothing else nearest(entry.name, options, cutoff=0.75 if other else 0.6) or other
    text = "" if kind == "str" else f"YAML reads {entry.name} as something else than text"
    other_degree, degrees = as_degrees(entry.place, entry.name, options, overrides)
    why = "; ".join(filter(None, (text, f"there are {listed(options)}", how, other_degree)))
    found = f"there is no option {entry.name!r} in group {entry.group}"
    found = "no option is named" if entry.name == MANDATORY else found
    fix = degrees or (f"{entry.place}={close}" if close else "")
    return file.problem(entry.node, asked, found, why, fix)
