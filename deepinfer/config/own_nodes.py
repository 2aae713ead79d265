"""What a file of the user's own says to YAML that its author did not mean, found in its nodes and told with the line."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from msgspec import Struct

from deepinfer.config.config_files import LOADER
from deepinfer.config.errors import Problem

MAX_DEPTH = 32  # levels; our own files have four
MAX_KEYS = 10_000  # all of ours have a few hundred together; a table of logit biases may be long
_TAG = "tag:yaml.org,2002:"
_READ_AS = {"null": "null", "bool": "true or false", "float": "a number", "int": "a number", "timestamp": "a date"}
_NO_KEYS = ("null", "bool", "float", "timestamp")  # a whole number may be one: a token of sampling.logit_bias
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_GLOBAL = re.compile(r"\s*#\s*@package\s+_global_\s*$", re.MULTILINE)


class OwnFile(Struct, frozen=True, kw_only=True):
    """A file that YAML can read. `root` is None where it holds comments at most."""

    path: Path
    group: str
    root: yaml.Node | None
    is_global: bool  # its keys begin at the top of the configuration rather than in its group
    has_mark: bool  # it begins with a byte order mark

    def problem(self, node: yaml.Node | None, asked: str, found: str, why: str = "", fix: str = "") -> Problem:
        """A problem at the place of `node`."""
        line = node.start_mark.line + 1 if node is not None else 1
        return Problem(asked=asked, found=found, why=why, fix=fix, file=str(self.path), line=line)


def read_own(path: Path, group: str) -> OwnFile | None:
    """A file of the user's own; None where YAML cannot read it, which Hydra will say."""
    try:
        text = path.read_text("utf-8")
        if is_deep(text):
            return None
        root = yaml.compose(text, Loader=LOADER)
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError):
        return None
    is_global = _GLOBAL.match(text.removeprefix("\ufeff")) is not None
    return OwnFile(path=path, group=group, root=root, is_global=is_global, has_mark=text.startswith("\ufeff"))


def is_deep(text: str) -> bool:
    """Whether a document is nested more than MAX_DEPTH levels deep, counted without going down into them."""
    try:
        return _goes_below(yaml.parse(text, Loader=LOADER))
    except yaml.YAMLError:  # libyaml looks far ahead, and has a limit of its own
        return _goes_below(yaml.parse(text, Loader=yaml.SafeLoader))


def _goes_below(events: Iterator[yaml.Event]) -> bool:
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return True
    return False


def kind_of_node(node: yaml.Node) -> str:
    """What YAML takes a node for: str, int, null, seq, map, …"""
    return str(node.tag).removeprefix(_TAG)


def content_problems(file: OwnFile) -> Iterator[Problem]:
    """What makes a file unusable as a whole: no keys in it, a mark before them, keys that are not text."""
    if file.has_mark:
        found, why = "the file begins with a byte order mark", "Hydra then overlooks its first line"
        yield file.problem(None, file.path.name, found, f"{why}; save it as UTF-8 without one")
    elif not isinstance(file.root, yaml.MappingNode):
        what = "no keys" if file.root is None else "a list" if kind_of_node(file.root) == "seq" else "one bare value"
        yield file.problem(file.root, file.path.name, f"the file holds {what}", "an option is a mapping of keys")
    else:
        every = list(leaves(file.root))
        if len(every) > MAX_KEYS:
            found = f"the file holds {len(every):,} keys and items"
            yield file.problem(None, file.path.name, found, f"no option needs more than {MAX_KEYS:,}")
            return
        for _, key, _ in every:
            if (kind := kind_of_node(key)) in _NO_KEYS:
                found = f"YAML reads this key as {_READ_AS[kind]}"
                yield file.problem(key, f"{key.value or 'null'}:", found, "keys are text", f'"{key.value}":')


def number_problems(file: OwnFile) -> Iterator[Problem]:
    """Numbers that YAML 1.1 reads as other ones: 010 is eight, and 1:30 is ninety."""
    for path, _, value in leaves(file.root):
        if (
            not isinstance(value, yaml.ScalarNode)
            or kind_of_node(value) not in ("int", "float")
            or value.style not in (None, "")
        ):
            continue
        octal = _OCTAL.fullmatch(value.value)
        if octal or _BASE_60.fullmatch(value.value):
            read = yaml.safe_load(value.value)
            why = "a leading zero means base 8" if octal else "colons mean base 60"
            plain = value.value.replace("0", "", 1) if octal else ""
            why += f"; write {read}" + (f", or {plain} if that is meant" if octal else ', or "…" if it is text')
            yield file.problem(value, f"{path}={value.value}", f"YAML reads it as {read}", why)


def leaves(root: yaml.Node | None) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Every key of a document, and every item of its lists, with its dotted path, key node and value node; each once,
    however often an anchor repeats it."""
    seen: set[int] = set()
    waiting = [("", root)] if root is not None else []
    while waiting:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = f"{path}.{key.value}" if path else str(key.value)
                yield inner, key, value
                waiting.append((inner, value))
        elif isinstance(node, yaml.SequenceNode) and path != "defaults":
            for index, item in enumerate(node.value):
                yield f"{path}[{index}]", node, item
                waiting.append((f"{path}[{index}]", item))
