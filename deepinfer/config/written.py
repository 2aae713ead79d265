"""Free text in a file that YAML reads as something else: `revision: 12E34` is a number to it, and text to its author."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deepinfer.config.argv import CommandLine
from deepinfer.config.convert import MANDATORY
from deepinfer.config.keys import text_keys


def texts_as_written(data: Mapping[str, Any], line: CommandLine, config_dir: str) -> dict[str, str]:
    """Text keys of `data` that hold a number or a truth value, each with the characters that stand in the user's file.

    Only files of `config_dir` are looked into: ours quote their texts.
    """
    others = [key for key in text_keys() if isinstance(_get(data, key), bool | int | float)]
    if not others:
        return {}
    from deepinfer.config.provenance import trace  # walks all files once more

    origins = trace(line.overrides, line.texts, config_dir)
    found: dict[str, str] = {}
    for key in others:
        origin = origins.last(key)
        if origin is not None and Path(origin.file).is_absolute():
            text = _scalar(Path(origin.file), origin.line, key.rpartition(".")[2])
            if text is not None and text != MANDATORY:
                found[key] = text
    return found


def _get(data: Mapping[str, Any], key: str) -> Any:
    value: Any = data
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _scalar(file: Path, line: int, name: str) -> str | None:
    """The value of the key that stands on a line of a file, as written; None where it is no plain value."""
    nodes = [yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader)]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, yaml.MappingNode):
            continue
        for key, value in node.value:
            if key.value == name and key.start_mark.line + 1 == line and isinstance(value, yaml.ScalarNode):
                return str(value.value)
            nodes.append(value)
    return None
