"""Keys of the configuration for the reference page: what each takes, and the comment beside its field."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from deepinfer.config.leaves import Component
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.specs import Spec

FIELD = re.compile(r"    (\w+): (.+?)(?:  # (.+))?")
TAKES = {
    "Positive": "1 …",
    "Count": "0 …",
    "Int64": "0 …",
    "TokenId": "token id",
    "Share": "0 … 1",
    "Penalty": "number",
    "Seconds": "time",
    "Bytes": "size",
    "Text": "text",
    "Auto": "auto",
    "None": "null",
    "bool": "true, false",
    "float": "number",
    "int": "whole number",
    "str": "text",
    "dict": "mapping",
    "tuple": "list",
    "Verify": "auto, coupled, rejection",
}


class Key(NamedTuple):
    """One key of a group, dotted."""

    name: str
    takes: str
    meaning: str


def keys_of(group: str) -> list[Key]:
    """Keys of all options of a group, each once; `kind` says which option it is and is left out."""
    base = next(field.type for field in msgspec.structs.fields(Spec) if field.name == group)
    found: dict[str, Key] = {}
    for struct in BUILT_IN[base]:
        for key in _keys(struct, group):
            if key.name not in found or not found[key.name].meaning:
                found[key.name] = key
    return list(found.values())


def _keys(struct: type[msgspec.Struct], path: str) -> Iterator[Key]:
    written = {}
    for ancestor in reversed(struct.__mro__):
        if issubclass(ancestor, msgspec.Struct) and ancestor not in (msgspec.Struct, Component):
            matches = map(FIELD.fullmatch, inspect.getsource(ancestor).splitlines())
            written |= {match[1]: (match[2], match[3] or "") for match in matches if match}
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _keys(field.type, f"{path}.{field.name}")
        elif field.name in written:
            annotation, meaning = written[field.name]
            yield Key(f"{path}.{field.name}", ", ".join(_takes(ast.parse(annotation, mode="eval").body)), meaning)


def _takes(node: ast.expr) -> Iterator[str]:
    """What a written type lets through, in words."""
    if isinstance(node, ast.BinOp):
        yield from _takes(node.left)
        yield from _takes(node.right)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        yield ast.unparse(node.slice).strip("()").replace("'", "")
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
        yield from _takes(node.slice.elts[0])  # type: ignore[attr-defined]
    elif isinstance(node, ast.Subscript):
        yield from _takes(node.value)
    else:
        yield TAKES[ast.unparse(node)]
