"""The legal value that is nearest to one that was refused: what to type in its place."""

import json
import re
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from deepinfer.config.coerce import coerce, union_members
from deepinfer.config.errors import nearest
from deepinfer.config.ranges import SLIPS
from deepinfer.config.units import UNITS

AUTO = "auto"
NONE = "none"  # suggested last: who types a value wants something
WORDS_OF_BOOL = {"yes": True, "on": True, "y": True, "1": True, "no": False, "off": False, "n": False, "0": False}


def nearest_legal(value: Any, kind: Any) -> Any:
    """A value of the leaf type `kind` near `value`; None where nothing suggests itself."""
    for candidate in _candidates(value, kind):
        try:
            coerce(candidate, kind)
            return candidate
        except ValueError:
            continue
    return None


def legal(value: Any, kind: Any) -> Any:
    """`value` where it is one of `kind`, whether it came as text or not, else the nearest that is; None for none."""
    plain = as_plain(value)
    try:
        coerce(plain, kind)
        return value
    except ValueError:
        return nearest_legal(plain, kind)


def as_plain(value: Any) -> Any:
    """Text as the number, word or list that an override would make of it."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _candidates(value: Any, kind: Any) -> list[Any]:
    members = union_members(kind)
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    found: list[Any] = []
    if _is_number(value):
        numbers = [word for word in words if _is_number(word)]
        found += sorted(numbers, key=lambda word: abs(word - value))[:1]
        found += [word for member in members if get_origin(member) is Annotated for word in _clamped(value, member)]
    elif isinstance(value, str) and value[:1].isdigit():
        return _respelled(value)
    elif isinstance(value, str):
        close = nearest(value, [word for word in words if isinstance(word, str)])
        found += [close] if close else []
        found += [WORDS_OF_BOOL[value.lower()]] if value.lower() in WORDS_OF_BOOL and bool in members else []
        found += [like for member in members if (like := _example(member)) is not None]
    found += [AUTO] if AUTO in words else []
    found += sorted(words, key=lambda word: word == NONE)[:1]
    return [*found, None] if NoneType in members and not found else found


def _respelled(quantity: str) -> list[str]:
    """ "80gib" with its unit as it is spelled."""
    written = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z/]+)\s*", quantity)
    if written is None:
        return []
    number, unit = written.groups()
    known = dict.fromkeys(suffix for table in UNITS.values() for suffix in table if suffix.lower() == unit.lower())
    return [number + suffix for suffix in known]


def _clamped(value: int | float, member: Any) -> list[int | float]:
    """The end of the range that a number lies beyond; a whole number for one that is not whole."""
    base, *notes = get_args(member)
    meta = next((note for note in notes if isinstance(note, msgspec.Meta)), None)
    if meta is None or base not in (int, float):
        return []
    if meta.le is not None and value > meta.le:
        return [] if meta.le in SLIPS else [meta.le]
    if meta.ge is not None and value < meta.ge:
        return [meta.ge]
    if meta.gt is not None and value <= meta.gt:
        return [] if meta.le is None else [meta.le]
    return [round(value)] if base is int else []


def _example(member: Any) -> Any:
    """The example of a number that its leaf type gives; None where it gives none."""
    notes = get_args(member)[1:] if get_origin(member) is Annotated else ()
    likes = [(note.extra or {}).get("like") for note in notes if isinstance(note, msgspec.Meta)]
    return next((like for like in likes if _is_number(like)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
