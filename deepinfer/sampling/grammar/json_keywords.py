"""Which keywords of JSON Schema a backend enforces. A schema that uses another one is refused by name, never loosened.

Tests hold the table to what the backends do, and docs/structured_output.md to the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.sampling.grammar.json_numbers import COUNTS, NUMBERS, combined_problems, number_problems
from deepinfer.sampling.grammar.nearest import near

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 64  # schemas within schemas
MAX_PLACE = 80  # characters of a place in a message

_BOTH = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "minLength", "maxLength", "pattern", "format", "anyOf", "oneOf", "$ref", "$defs", "definitions"),
)
ENFORCED = {
    "llguidance": frozenset((*_BOTH, "patternProperties", "allOf", "$anchor")),
    "xgrammar": frozenset(_BOTH),
}
REFUSED = {  # keywords of the standard that no backend enforces → what to write instead
    "not": "list what is allowed (enum, anyOf)",
    "if": "write the cases as anyOf",
    "then": "write the cases as anyOf",
    "else": "write the cases as anyOf",
    "propertyNames": "name the members in properties, or use patternProperties",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "dependencies": "write the cases as anyOf",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "additionalItems": "use items beside prefixItems",
    "uniqueItems": "leave it out, and check the answer",
    "contains": "leave it out, and check the answer",
    "minContains": "leave it out, and check the answer",
    "maxContains": "leave it out, and check the answer",
    "contentEncoding": "use pattern",
    "contentMediaType": "leave it out, and check the answer",
    "contentSchema": "leave it out, and check the answer",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $ref",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $ref",
    "$vocabulary": "leave it out",
    "nullable": 'write "type": ["…", "null"]',
}
ANNOTATIONS = frozenset(  # say something to people and constrain nothing
    (
        *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
        *("$schema", "$id", "id", "discriminator", "externalDocs", "xml"),
    )
)
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")

_ONE = ("items", "additionalProperties")  # keywords that hold one schema
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # … a list of schemas
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # … schemas by name


def schema_problems(schema: Any, backend: str) -> list[str]:
    """What is wrong with a schema, or cannot be enforced by `backend`: a sentence each, with its place."""
    return [*dict.fromkeys(_problems(schema, "#", backend, 0))]


def _problems(schema: Any, place: str, backend: str, depth: int) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{place} is {schema!r:.60}: a schema is an object, true or false"
        return
    if depth > MAX_DEPTH:
        yield f"{_short(place)} is nested deeper than {MAX_DEPTH} schemas: flatten it, or use $ref"
        return
    yield from combined_problems(schema, _short(place))
    for keyword, value in schema.items():
        if not isinstance(keyword, str):
            yield f"{place} has the member {keyword!r:.60}: names are texts, so write {str(keyword)!r:.60}"
            continue
        yield from _keyword(keyword, value, f"{place}/{keyword}", backend)
        yield from _inner(keyword, value, f"{place}/{keyword}", backend, depth + 1)


def _keyword(keyword: str, value: Any, place: str, backend: str) -> Iterator[str]:
    place = _short(place)
    if keyword in REFUSED:
        yield f"{place}: {keyword} is not enforced by {backend}, so the answer could break it: {REFUSED[keyword]}"
    elif keyword in ENFORCED[backend]:
        yield from _value(keyword, value, place, backend)
    elif any(keyword in known for known in ENFORCED.values()):
        others = [name for name, known in ENFORCED.items() if keyword in known]
        yield f"{place}: {keyword} is not enforced by {backend}: type grammar={others[0]}"
    elif keyword not in ANNOTATIONS and (not keyword.startswith("x-") or keyword == "x-guidance"):
        close = near(keyword, [*ENFORCED[backend], *ANNOTATIONS])
        hint = f"did you mean {close}?" if close else "leave it out, or begin its name with x- where it is a note"
        yield f"{place}: {keyword} is no keyword of JSON Schema, and would be dropped silently: {hint}"


def _value(keyword: str, value: Any, place: str, backend: str) -> Iterator[str]:
    """A keyword that is enforced, with a value that cannot be."""
    if keyword == "type":
        for name in value if isinstance(value, list) and value else [value]:
            if name not in TYPES:
                close = near(name, TYPES) if isinstance(name, str) else ""
                hint = f"write {close!r}" if close else f"there are {', '.join(TYPES)}"
                yield f"{place} is {name!r:.60}, which is no type: {hint}"
    elif keyword == "format" and value not in FORMATS:
        yield f"{place} is {value!r:.60}, which is not enforced: there are {', '.join(FORMATS)}; pattern says others"
    elif keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        yield f"{place} is {value!r:.60}: a list of names is wanted"
    elif keyword == "enum" and not (isinstance(value, list) and value):
        yield f"{place} is {value!r:.60}: a list of values is wanted"
    elif keyword in COUNTS or keyword in NUMBERS or keyword in ("enum", "const"):
        yield from number_problems(keyword, value, place)
    elif keyword == "pattern" and not isinstance(value, str):
        yield f"{place} is {value!r:.60}: a regular expression is wanted, as a text"
    elif keyword == "pattern" and backend == "xgrammar" and not (value.startswith("^") and value.endswith("$")):
        yield f"{place} is {value!r:.60}: xgrammar takes it for the whole text: write ^…$, or type grammar=llguidance"
    elif keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        yield f"{place} is {value!r:.60}: only what is in the schema itself is read (#/$defs/…): put it there"


def _inner(keyword: str, value: Any, place: str, backend: str, depth: int) -> Iterator[str]:
    """The schemas inside a keyword."""
    if keyword in _ONE:
        if keyword == "items" and isinstance(value, list):
            yield f"{_short(place)} is a list: since draft 2020-12 that is called prefixItems"
        else:
            yield from _problems(value, place, backend, depth)
    elif keyword in _LISTS:
        if not isinstance(value, list) or not value:
            yield f"{_short(place)} is {value!r:.60}: a list of schemas is wanted"
            return
        for number, one in enumerate(value):
            yield from _problems(one, f"{place}/{number}", backend, depth)
    elif keyword in _MAPS:
        if not isinstance(value, dict):
            yield f"{_short(place)} is {value!r:.60}: schemas by name are wanted"
            return
        for name, one in value.items():
            if not isinstance(name, str):
                yield f"{_short(place)} has the name {name!r:.60}: names are texts, so write {str(name)!r:.60}"
            yield from _problems(one, f"{place}/{name}", backend, depth)


def _short(place: str) -> str:
    """A place without its middle where it is long."""
    return place if len(place) <= MAX_PLACE else f"{place[:20]}…{place[20 - MAX_PLACE :]}"
