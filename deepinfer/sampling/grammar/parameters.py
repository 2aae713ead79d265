"""A tool's parameters: which of their values are written as texts, as they are, and which as JSON.

A schema speaks of both at once. What of it cannot be told apart exactly is a problem with its place, never dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deepinfer.sampling.grammar.json_keywords import ANNOTATIONS, TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_REFS = 8  # one behind another
_TOP = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_OF_TEXTS = ("minLength", "maxLength", "pattern", "format")
_LOOKS = re.compile(r"\(\?<?[=!]|\\[bBAzZ1-9]")


@dataclass(frozen=True, slots=True)
class Text:
    """What a text must be: one of `words`, of `least` to `most` characters, and such that `pattern` is found in it."""

    words: tuple[str, ...] | None = None
    least: int = 0
    most: int | None = None
    pattern: str | None = None


class _Unclear(ValueError):
    """Why a schema cannot be told apart."""


def parameter_problems(schema: dict[str, Any]) -> list[str]:
    """What of a tool's schema, whose keywords are all enforced in JSON, is not enforced in a call."""
    return list(_problems(schema))


def forms_of(schema: Any, shared: dict[str, Any]) -> tuple[list[Text], list[Any]]:
    """How one parameter may be written: its texts, and the schemas of its other values.

    `shared`: the tool's `$defs` and `definitions`. Raises ValueError where that cannot be told.
    """
    texts, others = [], []
    for one in _branches(schema, shared, 0):
        if "string" in _kinds(one, shared, 0):
            texts += _texts(one)
            others += _others(one)
        else:
            others.append(one)
    return texts, others


def shared_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("$defs", "definitions") if name in schema}


def _problems(schema: dict[str, Any]) -> Iterator[str]:
    if not schema:
        return
    for keyword in schema:
        if keyword not in _TOP and keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            yield f"#/{keyword}: of a tool's parameters only properties and required are enforced: leave it out"
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type", "object") not in ("object", ["object"]):
        yield f"#/type is {schema['type']!r:.60}: a tool's parameters are an object"
    for name in required:
        if properties.get(name, False) is False:
            yield f"#/required: {name!r:.60} is required and not in properties: add it there"
    if not properties and not isinstance(schema.get("additionalProperties", True), bool):
        yield "#/additionalProperties: parameters are told apart by properties only: name them there"
    for name, one in properties.items():
        try:
            forms_of(one, shared_of(schema))
        except _Unclear as error:
            yield f"#/properties/{name:.60}: {error}"


def _branches(schema: Any, shared: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    """The cases of a schema that may be texts, its references and its anyOf resolved; other schemas as they are."""
    if schema is False:
        return
    schema = {} if schema is True else schema
    if "string" not in _kinds(schema, shared, 0):
        yield schema
    elif "$ref" in schema:
        rest = {name: value for name, value in schema.items() if name != "$ref"}
        yield from _branches(_both(rest, _target(schema["$ref"], shared, depth)), shared, depth + 1)
    elif "anyOf" in schema:
        rest = {name: value for name, value in schema.items() if name != "anyOf"}
        for one in schema["anyOf"]:
            if one is not False:
                yield from _branches(_both(rest, {} if one is True else one), shared, depth + 1)
    else:
        yield schema


def _target(ref: str, shared: dict[str, Any], depth: int) -> dict[str, Any]:
    found = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", ref)
    target = shared.get(found[1], {}).get(found[2]) if found else None
    if target is None or depth > MAX_REFS:
        raise _Unclear(
            f"$ref={ref!r:.60} is not followed in a parameter that may be a text: write the schema in its place"
        )
    return {} if target is True else {"enum": []} if target is False else target


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema that is as strict as two together."""
    found = dict(one)
    for keyword, value in other.items():
        if keyword in ANNOTATIONS or keyword.startswith("x-") or keyword not in found or found[keyword] == value:
            found[keyword] = value
        elif keyword == "type":
            kinds = _listed(found["type"]) & _listed(value)
            found["type"] = [kind for kind in TYPES if kind in kinds]
        else:
            raise _Unclear(f"{keyword} stands in two places of a parameter that may be a text: write it in one")
    return found


def _kinds(schema: Any, shared: dict[str, Any], depth: int) -> set[str]:
    """Types that a value may have; too many rather than too few."""
    if not isinstance(schema, dict) or depth > MAX_REFS:
        return set() if schema is False else set(TYPES)
    kinds = _listed(schema["type"]) if "type" in schema else set(TYPES)
    values = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    if values and not any(isinstance(value, str) for value in values):
        kinds -= {"string"}
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            kinds &= set().union(*(_kinds(one, shared, depth + 1) for one in schema[keyword]))
    for one in schema.get("allOf", ()):
        kinds &= _kinds(one, shared, depth + 1)
    if "$ref" in schema:
        found = re.fullmatch(r"#/(\$defs|definitions)/([^/~%]+)", schema["$ref"])
        target = shared.get(found[1], {}).get(found[2], True) if found else True
        kinds &= _kinds(target, shared, depth + 1)
    return kinds


def _listed(types: Any) -> set[str]:
    kinds = {types} if isinstance(types, str) else set(types)
    return kinds | {"integer"} if "number" in kinds else kinds


def _texts(schema: dict[str, Any]) -> list[Text]:
    """The texts of a case that has no reference and no anyOf."""
    for keyword in ("allOf", "oneOf", "format"):
        if keyword in schema:
            raise _Unclear(f"{keyword} is not enforced in a parameter that may be a text: write pattern, enum or anyOf")
    least, most, pattern = schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern")
    words = _words(schema)
    if words is not None:
        words = tuple(word for word in words if least <= len(word) and (most is None or len(word) <= most))
        if not words:
            return []
        least, most = 0, None
    if most is not None and least > most:
        return []
    if pattern is not None:
        _check_pattern(pattern)
    return [Text(words, least, most, pattern)]


def _words(schema: dict[str, Any]) -> tuple[str, ...] | None:
    """The texts among the values that are listed; None where none are listed."""
    if "enum" not in schema and "const" not in schema:
        return None
    values = schema.get("enum", [schema.get("const")])
    if "const" in schema:
        values = [value for value in values if value == schema["const"]]
    return tuple(dict.fromkeys(value for value in values if isinstance(value, str)))


def _others(schema: dict[str, Any]) -> list[Any]:
    """The values of a case that are no texts."""
    rest = {name: value for name, value in schema.items() if name not in _OF_TEXTS}
    if "enum" in schema:
        rest["enum"] = [value for value in schema["enum"] if not isinstance(value, str)]
    kinds = _listed(schema["type"]) if "type" in schema else set(TYPES)
    rest["type"] = [kind for kind in TYPES if kind in kinds and kind != "string"]
    nothing = not rest["type"] or rest.get("enum") == [] or isinstance(schema.get("const"), str)
    return [] if nothing else [rest]


def _check_pattern(pattern: str) -> None:
    """Raise where an anchor is not at an end of the whole pattern, or looks around are asked for."""
    found = anchors(pattern)
    if found is None or _LOOKS.search(re.sub(r"\\\\", "", pattern)):
        raise _Unclear(
            f"pattern {pattern!r:.60} is not enforced in a parameter that may be a text: ^ and $ may only stand at the ends of "
            "the whole (put alternatives in a group), without look-around"
        )


def anchors(pattern: str) -> tuple[bool, bool] | None:
    """Whether a pattern is anchored at its beginning and end; None where it is so in part or elsewhere."""
    places, bars, depth, in_class, index = [], False, 0, False, 0
    while index < len(pattern):
        sign = pattern[index]
        if sign == "\\":
            index += 1
        elif in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
            index += pattern[index + 1 : index + 2] == "^"
            index += pattern[index + 1 : index + 2] == "]"
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|":
            bars = bars or depth == 0
        elif sign in "^$":
            places.append((sign, index))
        index += 1
    begin, end = ("^", 0) in places, ("$", len(pattern) - 1) in places
    return None if len(places) != begin + end or (bars and places) else (begin, end)
