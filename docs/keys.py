"""Keys of the configuration for the reference page: what each takes, and the comment beside its field."""

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from deepinfer.config.chips import Hardware
from deepinfer.config.keys import struct_of
from deepinfer.config.meanings import fields_of
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.specs import Spec

TAKES = {
    "Positive": "1 …",
    "Count": "0 …",
    "Depth": "1 … 32",
    "SomeText": "text",
    "Int64": "0 …",
    "TokenId": "token id",
    "Share": "0 … 1",
    "Penalty": "number",
    "Seconds": "time",
    "Interval": "time",
    "Bytes": "size",
    "BytesOrNone": "size",
    "Text": "text",
    "Verified": "mapping",
    "Rate": "number",
    "PartOf": "0 … 1",
    "Daily": "number",
    "Port": "port",
    "Day": "date",
    "Commit": "commit",
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
    written = fields_of(struct)
    for field in msgspec.structs.fields(struct):
        if field.type is Hardware:  # the keys of a chip, which carry their own sources
            yield Key(
                f"{path}.{field.name}", "a chip", f"option by `hardware@{path}.{field.name}=…`, keys as `hardware`"
            )
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _keys(field.type, f"{path}.{field.name}")
        elif field.name in written:
            annotation, meaning = written[field.name]
            yield Key(
                f"{path}.{field.name}", ", ".join(_takes(annotation, vars(sys.modules[struct.__module__]))), meaning
            )
            if (nested := struct_of(field.type)) is not None:
                yield from _keys(nested, f"{path}.{field.name}")


def _takes(node: ast.expr, names: Mapping[str, Any]) -> Iterator[str]:
    """What a written type lets through, in words; `names` are those of its module."""
    if isinstance(node, ast.BinOp):
        yield from _takes(node.left, names)
        yield from _takes(node.right, names)
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
        yield ast.unparse(node.slice).strip("()").replace("'", "")
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
        yield from _takes(node.slice.elts[0], names)  # type: ignore[attr-defined]
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Fact":
        yield from _takes(node.slice, names)
    elif isinstance(node, ast.Subscript):
        yield from _takes(node.value, names)
    elif (name := ast.unparse(node)) in TAKES:
        yield TAKES[name]
    else:  # a name for an annotated type, without words of its own
        yield TAKES[get_args(names[name])[0].__name__]
