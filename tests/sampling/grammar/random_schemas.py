"""Random JSON Schemas of the keywords that are enforced, each satisfiable, with texts and lists of bounded length."""

import random
from typing import Any

_NAMES = ("id", "name", "größe", "tags", "a b", "x_1", 'quo"te', "value")


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema, at most `depth` levels of objects and lists deep."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    if depth:
        kinds += ["object"] * 5 + ["array"] * 3 + ["tuple", "anyOf", "oneOf", "allOf", "ref"]
    return _MAKERS[rng.choice(kinds)](rng, depth)


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    least = rng.choice((0, 0, 1, 3))
    return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(12)}


def _integer(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randrange(-1000, 1000)
    found: dict[str, Any] = {"type": "integer"}
    bounds = [("minimum", low), ("maximum", low + rng.randrange(3, 5000))]
    found |= dict(bounds if rng.random() < 0.5 else bounds[: rng.randrange(2)])
    if rng.random() < 0.2:
        found["multipleOf"] = rng.choice((2, 3))
    return found


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    low = rng.randrange(-50, 50) / 4
    return {"type": "number", **rng.choice(({}, {"minimum": low}, {"exclusiveMinimum": low, "maximum": low + 2.5}))}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randrange(1, 5))
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    if rng.random() < 0.7:
        return found | {"additionalProperties": False}
    more = {"additionalProperties": {"type": "boolean"}, "maxProperties": len(names) + 1}
    return found | more | {"required": names}  # a number of members is enforced only where all named ones are required


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(3)
    return {"type": "array", "items": schema(rng, depth - 1), "minItems": least, "maxItems": least + rng.randrange(3)}


def _tuple(rng: random.Random, depth: int) -> dict[str, Any]:
    first = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    return {"type": "array", "prefixItems": first, "items": False, "minItems": rng.randrange(len(first) + 1)}


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rng, depth - 1), {"type": "null"}]}


def _one_of(rng: random.Random, depth: int) -> dict[str, Any]:
    """Told apart by a constant member."""
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": schema(rng, depth - 1)},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind in ("one", "two")
        ]
    }


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-10, 10)
    return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 9}]}


def _ref(rng: random.Random, depth: int) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"v": schema(rng, 0), "next": {"anyOf": [{"type": "null"}, {"type": "integer"}]}},
        "required": ["v", "next"],
        "additionalProperties": False,
    }
    # nested references are read from the root, so they are inlined here unless this is the root
    return node if depth < 2 else {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def _enum(rng: random.Random, _: int) -> dict[str, Any]:
    return {"enum": rng.sample(["red", "grün", 5, 1.5, None, True, {"a": [1]}, "red and blue"], rng.randrange(1, 5))}


_MAKERS: dict[str, Any] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": lambda rng, depth: {"type": "boolean"},
    "null": lambda rng, depth: {"type": ["null"]},
    "enum": _enum,
    "const": lambda rng, depth: {"const": rng.choice(("x", 7, None, [1, "a"], {"k": False}))},
    "format": lambda rng, depth: {"type": "string", "format": rng.choice(("date", "time", "ipv4", "uuid"))},
    "pattern": lambda rng, depth: {
        "type": "string",
        "pattern": rng.choice(("^[a-f]{2,6}$", "^(yes|no)$", r"^\d{1,3}$")),
    },
    "object": _object,
    "array": _array,
    "tuple": _tuple,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "ref": _ref,
}
