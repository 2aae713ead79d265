"""Values that a value could sensibly have instead: what a "what if" tries, always in the same order."""

import re
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from deepinfer.config.coerce import coerce, union_members
from deepinfer.config.keys import ANY, leaf_keys, text_keys

AUTO = "auto"
_TYPEABLE = re.compile(r"[\w.]+")  # a key that can be written as an override


def kind_of(key: str) -> Any:
    """The leaf type of a dotted key, None where it is no leaf. Free names stand for the "*" of their mappings."""
    names = key.split(".")
    for known, kind in leaf_keys().items():
        pattern = known.split(".")
        if len(pattern) == len(names) and all(part in (name, ANY) for part, name in zip(pattern, names, strict=True)):
            return kind
    return None


def neighbours(key: str, value: Any, settled: Any = None) -> list[Any]:
    """Other values of a key, nearest first; none for free text, and where nothing else can be said.

    `settled` is what an "auto" became here, if that is known.
    """
    kind = kind_of(key)
    if kind is None or key in text_keys() or key.endswith(".kind") or not _TYPEABLE.fullmatch(key):
        return []
    now = settled if value == AUTO and settled is not None else value
    found: list[Any] = []
    for other in _others(kind, now):
        try:
            other = coerce(other, kind)
        except ValueError:
            continue  # out of the type's range
        if other not in (value, now, *found):
            found.append(other)
    return found


def other_options(option: str, options: Sequence[str]) -> list[str]:
    """Other options of a group: the next one, the one before, then the rest, with ep8 before ep64."""
    ordered = sorted(set(options) | {option}, key=_natural)
    place = ordered.index(option)
    around = ordered[place + 1 : place + 2] + ordered[max(place - 1, 0) : place]
    return [*around, *(name for name in ordered if name not in (*around, option))]


def _others(kind: Any, now: Any) -> Iterator[Any]:
    if isinstance(now, bool):
        yield not now
    elif isinstance(now, int | float):
        yield from (now * 2, now // 2 if isinstance(now, int) else now / 2) if now else (1, 0.5)
    elif isinstance(now, list | tuple) and len(now) > 1:
        yield list(now[1:])
    for member in union_members(kind):
        base = get_args(member)[0] if get_origin(member) is Annotated else member
        if get_origin(base) is Literal:
            yield from (word for word in get_args(base) if word not in (now, AUTO))
        elif now is None and base is not NoneType:
            yield 1


def _natural(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]
