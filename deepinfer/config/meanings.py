"""What a key is for: the comment that stands beside its field, which the reference page shows too."""

import ast
import inspect
import re
from functools import cache

import msgspec

from deepinfer.config.leaves import Component
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.specs import Spec

_COMMENT = re.compile(r"  # (.+)$")


@cache
def meaning_of(key: str) -> str:
    """In a few words, of `group.name`; "" for any other key, and where the name says all."""
    group, _, name = key.partition(".")
    base = next((field.type for field in msgspec.structs.fields(Spec) if field.name == group), None)
    found = (fields_of(struct).get(name) for struct in (BUILT_IN[base] if base is not None else ()))
    return next((field[1] for field in found if field and field[1]), "")


def fields_of(struct: type[msgspec.Struct]) -> dict[str, tuple[ast.expr, str]]:
    """Field → its type as written, and its comment; those of ancestors included."""
    found: dict[str, tuple[ast.expr, str]] = {}
    for ancestor in reversed(struct.__mro__):
        if issubclass(ancestor, msgspec.Struct) and ancestor not in (msgspec.Struct, Component):
            found |= _written(inspect.getsource(ancestor))
    return found


def _written(source: str) -> dict[str, tuple[ast.expr, str]]:
    """The comment stands behind a field, on its first or its last line."""
    lines, (struct,) = source.splitlines(), ast.parse(source).body
    assert isinstance(struct, ast.ClassDef)
    found = {}
    for node in struct.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comments = (_COMMENT.search(lines[number - 1]) for number in (node.lineno, node.end_lineno or node.lineno))
            found[node.target.id] = node.annotation, next((match[1] for match in comments if match), "")
    return found
