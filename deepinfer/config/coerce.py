"""One leaf: a plain YAML value becomes the typed value of a field, or a sentence says why not."""

import math
import re
from datetime import date
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from deepinfer.config.errors import listed, nearest
from deepinfer.config.ranges import SLIPS
from deepinfer.config.units import EXAMPLES, parse_quantity

_NUMBER_AS_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # YAML 1.1 reads 1e-3 as text


def coerce(value: Any, kind: Any) -> Any:
    """`value` as the leaf type `kind`. Raises ValueError whose text says what was found and what would do.

    Whole floats count as ints (5e8), quantities may carry a unit where the type has one, and an int is a float too;
    nothing else changes its type.
    """
    members = union_members(kind)
    if len(members) == 1:
        return _single(value, kind)
    if value is None and NoneType in members:
        return None
    literals = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    if value in literals and isinstance(value, str):
        return value
    rest = [member for member in members if member is not NoneType and get_origin(member) is not Literal]
    of_text = (member for member in rest if isinstance(value, str) and member is str)
    try:
        return _single(value, next(of_text, rest[0]))
    except ValueError as error:
        written_number = isinstance(value, str) and value[:1].isdigit()
        raise ValueError(str(error) if written_number else _unfit(value, kind, literals)) from error


def union_members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _single(value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        words = get_args(kind)
        if any(value == word and type(value) is type(word) for word in words):
            return value
        raise ValueError(_unfit(value, kind, words))
    base, meta = _split(kind)
    unit = _unit(meta)
    if isinstance(value, str) and unit:
        value = parse_quantity(value, unit)
    elif base is float and isinstance(value, str) and _NUMBER_AS_TEXT.fullmatch(value):
        value = float(value)
    if base is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(_unfit(value, kind, ()))
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_unfit(value, kind, ())) from error
    if converted and meta is not None and (meta.extra or {}).get("day"):
        _check_day(converted)
    return converted


def _check_day(text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text} is no day of the calendar") from error


def _split(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """A type without and with its Meta."""
    if get_origin(kind) is not Annotated:
        return kind, None
    base, *notes = get_args(kind)
    return base, next((note for note in notes if isinstance(note, msgspec.Meta)), None)


def describe(kind: Any) -> str:
    """What a field wants, in words: "a whole number of at least 1 (4096, 64k or 64Ki) or auto"."""
    members = union_members(kind)
    if len(members) > 1:
        return " or ".join("null" if member is NoneType else describe(member) for member in members)
    if get_origin(kind) is Literal:
        return listed(str(word) for word in get_args(kind))
    base, meta = _split(kind)
    name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(base, str(base))
    if meta is not None and meta.min_length:
        name += f" of at least {meta.min_length} character{'s' * (meta.min_length > 1)}"
    return name if meta is None else name + _bounds(meta) + _example(meta)


def reason(value: Any, kind: Any) -> str:
    """Why a value that lies beyond the range of a leaf cannot be meant; "" where that goes without saying."""
    metas = [meta for member in union_members(kind) if (meta := _split(member)[1]) is not None]
    if isinstance(value, int | float) and any(_is_slip(value, meta) for meta in metas):
        return "that is more than anything there is"
    beyond = (
        meta
        for meta in metas
        if (isinstance(value, int | float) and meta.le is not None and value > meta.le)
        or (value == "" and meta.min_length)
    )
    return next((str((meta.extra or {}).get("why", "")) for meta in beyond), "")


def _is_slip(value: int | float, meta: msgspec.Meta) -> bool:
    return meta.le in SLIPS and value > (meta.le or 0)


def _bounds(meta: msgspec.Meta) -> str:
    words = [
        f"{sign} {bound}"
        for sign, bound in (
            ("of at least", meta.ge),
            ("above", meta.gt),
            ("of at most", meta.le),
            ("below", meta.lt),
        )
        if bound is not None and bound not in SLIPS
    ]
    return f" {' and '.join(words)}" if words else ""


def _example(meta: msgspec.Meta) -> str:
    unit, like = _unit(meta), (meta.extra or {}).get("like")
    if like:
        return f" like {like}"
    return f" ({EXAMPLES[unit]})" if unit else ""


def _unit(meta: msgspec.Meta | None) -> str:
    """The key of the unit table that a type is written in; empty for plain numbers. What lies between 0 and 1 is a share."""
    if meta is None:
        return ""
    within = (meta.ge if meta.ge is not None else meta.gt, meta.le if meta.le is not None else meta.lt)
    return str((meta.extra or {}).get("unit", "share" if within == (0, 1) else ""))


def _unfit(value: Any, kind: Any, words: Any) -> str:
    close = nearest(value, [str(word) for word in words]) if isinstance(value, str) else None
    hint = f"; did you mean {close}?" if close else ""
    return f"found {say(value)}, wanted {describe(kind)}{hint}"


def say(value: Any) -> str:
    """A value and what it is, for a sentence."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"the text {value!r}"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return repr(value)
