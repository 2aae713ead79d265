"""Every key of the configuration as a dotted path, whatever options are chosen: the union over all kinds."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

from deepinfer.config.coerce import union_members
from deepinfer.config.leaves import Component
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.specs import Spec

ANY = "*"  # stands for the free names of an open mapping


@cache
def leaf_keys() -> dict[str, Any]:
    """Dotted path → leaf type, in the order of the Structs. A mapping with free names ends in ".*"."""
    found: dict[str, Any] = {}
    for path, kind in _walk(Spec, ()):
        found.setdefault(".".join(path), kind)
    return found


@cache
def text_keys() -> frozenset[str]:
    """Keys whose value is free text or a path: taken from the command line as it stands."""
    return frozenset(path for path, kind in leaf_keys().items() if any(map(_is_text, union_members(kind))))


def is_key(path: str) -> bool:
    """Whether some option has this dotted key, be it one of the free names of an open mapping."""
    if path in leaf_keys():
        return True
    heads = {known.partition(f".{ANY}")[0] for known in leaf_keys() if ANY in known}
    return any(path.startswith(f"{head}.") for head in heads)


@cache
def places() -> tuple[str, ...]:
    """Groups inside other groups, as their options are chosen: parallel@deploy.prefill.parallel."""
    found = []
    for group in msgspec.structs.fields(Spec):
        for struct in BUILT_IN[group.type]:
            for side in msgspec.structs.fields(struct):
                inner = msgspec.structs.fields(side.type) if is_struct(side.type) and not is_group(side.type) else ()
                found += [
                    f"{field.name}@{group.name}.{side.name}.{field.name}" for field in inner if is_group(field.type)
                ]
    return tuple(dict.fromkeys(found))


def _walk(kind: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if kind in BUILT_IN:
        yield (*path, "kind"), str
        for struct in BUILT_IN[kind]:
            yield from _fields(struct, path)
    elif is_struct(kind):
        yield from _fields(kind, path)
    elif (struct := struct_of(kind)) is not None:
        yield path, kind
        yield from _fields(struct, path)
    elif get_origin(kind) is dict:
        yield from _walk(get_args(kind)[1], (*path, ANY))
    else:
        yield path, kind


def _fields(struct: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in msgspec.structs.fields(struct):
        yield from _walk(field.type, (*path, field.name))


def is_struct(kind: Any) -> bool:
    """Whether a field's type is a Struct, generic or not."""
    plain = get_origin(kind) or kind
    return isinstance(plain, type) and issubclass(plain, msgspec.Struct)


def struct_of(kind: Any) -> Any:
    """The Struct of a union of one Struct and words; None for any other type."""
    members = union_members(kind)
    return next((member for member in members if is_struct(member)), None) if len(members) > 1 else None


def is_group(kind: Any) -> bool:
    """Whether a field's type is the base of a group, to be chosen by its `kind`."""
    return isinstance(kind, type) and issubclass(kind, Component) and kind in BUILT_IN


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is not Annotated:
        return False
    return any(isinstance(note, msgspec.Meta) and (note.extra or {}).get("verbatim") for note in get_args(kind)[1:])
