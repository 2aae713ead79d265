"""The files behind a composition, with the line of every key and of every entry of a defaults list."""

import copy
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.default_element import DefaultsTreeNode, GroupDefault, InputDefault
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from msgspec import Struct
from omegaconf import OmegaConf

from deepinfer.config.history import Origin
from deepinfer.config.hydra_files import reader_of

OURS = "pkg://deepinfer.conf"  # as Hydra calls our own tree: beside the package in a checkout, inside it in a wheel
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without libyaml
Lines = dict[tuple[str, ...], int]  # path of names (an index for an item of a list) → line


class ConfigFiles:
    """The search path of one composition: our tree, then the folders that its overrides add."""

    def __init__(self, loader: ConfigLoader, overrides: Sequence[Override]) -> None:
        path = copy.deepcopy(loader.get_search_path())
        for override in overrides:
            folders = override.value()
            if override.key_or_group == "hydra.searchpath" and isinstance(folders, list):
                for folder in folders:
                    path.append("hydra.searchpath", folder)
        self._reader = reader_of(path)
        self._files: dict[str, _File] = {}

    def content(self, config_path: str) -> tuple[Any, str, Lines]:
        """What a file says beside its defaults list, what people call the file, and where its keys stand."""
        file = self._file(config_path)
        return OmegaConf.to_container(file.loaded.config, resolve=False), file.shown, file.lines

    def defaults(self, config_path: str) -> list[tuple[InputDefault, str, int]]:
        """The entries of a file's defaults list, each with its file and line. They are the caller's to change."""
        file = self._file(config_path)
        entries = copy.deepcopy(file.loaded.defaults_list or [])
        return [(entry, file.shown, file.lines.get(("defaults", str(i)), 1)) for i, entry in enumerate(entries)]

    def _file(self, config_path: str) -> "_File":
        if config_path not in self._files:
            loaded = self._reader.load_config(config_path)
            assert loaded is not None, "Hydra has just read it"
            shown, text = _source(loaded.path, config_path)
            self._files[config_path] = _File(loaded=loaded, shown=shown, lines=key_lines(text))
        return self._files[config_path]


class _File(Struct, frozen=True, kw_only=True):
    loaded: ConfigResult
    shown: str  # what people call it
    lines: Lines


def _source(root: str, config_path: str) -> tuple[str, str]:
    """What people call a file, and its text. `root` is the place on the search path that holds it."""
    name = f"{config_path.removesuffix('.yaml')}.yaml"
    scheme, _, place = root.rpartition("://")
    if scheme == "pkg":
        shown = f"conf/{name}" if root == OURS else f"{place}/{name}"
        return shown, resources.files(place.replace("/", ".")).joinpath(name).read_text(encoding="utf-8")
    file = Path(place).absolute() / name
    return str(file), file.read_text(encoding="utf-8")


def key_lines(text: str) -> Lines:
    """The line of every key and list item of a YAML document, counted from 1."""
    root = yaml.compose(text, Loader=LOADER)
    return dict(_lines(root, ())) if root is not None else {}


def _lines(node: yaml.Node, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*names, str(key.value)), key.start_mark.line + 1
            yield from _lines(value, (*names, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*names, str(index)), item.start_mark.line + 1
            yield from _lines(item, (*names, str(index)))


def chosen_in(tree: DefaultsTreeNode, files: ConfigFiles) -> dict[str, list[Origin]]:
    """Group (or group@package) → the lines of files that choose its option, oldest first.

    Of several `override` lines Hydra takes the one it meets first, and it goes through the files from the last to the
    first, so the strongest is the last one here.
    """
    declared: dict[str, list[Origin]] = {}
    overriding: dict[str, list[Origin]] = {}
    for node in _nodes(tree):
        if node.get_name() is None or node.is_deleted() or node.get_config_path().startswith("hydra/"):
            continue
        for entry, file, line in files.defaults(node.get_config_path()):
            if not isinstance(entry, GroupDefault):
                continue
            entry.update_parent(node.get_group_path(), node.get_final_package())
            found = overriding if entry.is_override() else declared
            origin = Origin(value=entry.value, file=file, line=line)
            found.setdefault(entry.get_override_key(), []).append(origin)
    keys = [key for key in (declared | overriding) if not key.startswith("hydra")]
    return {key: [*declared.get(key, [])[:1], *reversed(overriding.get(key, []))] for key in keys}


def _nodes(tree: DefaultsTreeNode) -> Iterator[InputDefault]:
    """A file before the files that its defaults list names, and of those the last one first: Hydra's order."""
    if not tree.node.is_virtual():
        yield tree.node
    for child in reversed(tree.children or ()):
        if isinstance(child, DefaultsTreeNode):
            yield from _nodes(child)
        elif not child.is_self():
            yield child
