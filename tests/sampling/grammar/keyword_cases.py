"""Compact cases for each keyword of JSON Schema: a schema, values that it allows, values that it forbids.

Written for this suite in the manner of the JSON Schema Test Suite. Objects list their members in the order of the schema's
`properties`, the only order that a grammar writes.
"""

from typing import Any, NamedTuple


class Case(NamedTuple):
    keyword: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
PAIR = {"type": "object", "properties": {"a": TEXT, "b": WHOLE}}
CASES = [
    Case("type", TEXT, ["", 'a\n"é🙂'], [1, None, {}, [], True]),
    Case("type", WHOLE, [0, -7, 123], [1.5, "1", None]),
    Case("type", {"type": "number"}, [0, -1.5, 2e10], ["1", None]),
    Case("type", {"type": "boolean"}, [True, False], [0, "true", None]),
    Case("type", {"type": "null"}, [None], [False, 0, ""]),
    Case("type", {"type": "array"}, [[], [1, "a", [None]]], [{}, "x"]),
    Case("type", {"type": "object"}, [{}, {"x": {"y": [1]}}], [[], 3]),
    Case("type", {"type": ["integer", "null"]}, [3, None], ["3", 1.5]),
    Case("enum", {"enum": ["red", 5, None, {"a": 1}]}, ["red", 5, None, {"a": 1}], ["green", 6, {"a": 2}]),
    Case("const", {"const": [1, {"x": "y"}]}, [[1, {"x": "y"}]], [[1], [1, {"x": "z"}]]),
    Case("properties", PAIR, [{}, {"a": "x"}, {"a": "x", "b": 1}, {"b": 1}], [{"a": 1}, {"b": "x"}]),
    Case("required", {**PAIR, "required": ["b"]}, [{"b": 1}, {"a": "", "b": 1}], [{}, {"a": "x"}]),
    Case("additionalProperties", {**PAIR, "additionalProperties": False}, [{"a": "x"}], [{"c": 1}, {"a": "x", "c": 1}]),
    Case("additionalProperties", {**PAIR, "additionalProperties": WHOLE}, [{"a": "x", "c": 1}], [{"a": "x", "c": "y"}]),
    Case(
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": WHOLE}, "additionalProperties": False},
        [{}, {"n_a": 1}],
        [{"n_a": "x"}, {"m": 1}],
    ),
    Case("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"b": 1}]),
    Case("minProperties", {"type": "object", "minProperties": 1}, [{"a": 1, "b": 2}], [{}]),
    Case("maxProperties", {"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    Case("dependentRequired", {**PAIR, "dependentRequired": {"a": ["b"]}}, [{"a": "", "b": 1}], [{"a": ""}]),
    Case("dependentSchemas", {**PAIR, "dependentSchemas": {"a": {"required": ["b"]}}}, [{"b": 1}], [{"a": ""}]),
    Case("unevaluatedProperties", {**PAIR, "unevaluatedProperties": False}, [{"a": ""}], [{"c": 1}]),
    Case("items", {"type": "array", "items": WHOLE}, [[], [1, 2]], [["a"], [1, None]]),
    Case("prefixItems", {"type": "array", "prefixItems": [TEXT, WHOLE]}, [["a"], ["a", 1, None]], [[1], ["a", "b"]]),
    Case(
        "prefixItems",
        {"type": "array", "prefixItems": [TEXT], "items": False, "minItems": 1},
        [["a"]],
        [[], ["a", 1]],
    ),
    Case("additionalItems", {"type": "array", "prefixItems": [TEXT], "additionalItems": False}, [["a"]], [["a", 1]]),
    Case("minItems", {"type": "array", "minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]]),
    Case("maxItems", {"type": "array", "maxItems": 2}, [[], [1, 2]], [[1, 2, 3]]),
    Case("uniqueItems", {"type": "array", "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    Case("contains", {"type": "array", "contains": WHOLE}, [["a", 1]], [["a"]]),
    Case("minContains", {"type": "array", "contains": WHOLE, "minContains": 2}, [[1, 2]], [[1]]),
    Case("maxContains", {"type": "array", "contains": WHOLE, "maxContains": 1}, [[1]], [[1, 2]]),
    Case("unevaluatedItems", {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False}, [["a"]], [["a", 1]]),
    Case("minimum", {"type": "integer", "minimum": -12}, [-12, 0, 500], [-13, -100]),
    Case("maximum", {"type": "integer", "maximum": 255}, [255, 0, -9], [256, 1000]),
    Case("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 0}, [1, 10], [0, -1]),
    Case("exclusiveMaximum", {"type": "number", "exclusiveMaximum": 1.5}, [1.25, 0, -3], [1.5, 2]),
    Case("multipleOf", {"type": "integer", "multipleOf": 5}, [0, 15, -20], [3, 16]),
    Case("minLength", {"type": "string", "minLength": 3}, ["abc", "é🙂xy"], ["", "ab"]),
    Case("maxLength", {"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
    Case("pattern", {"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["", "abd"]),
    Case("pattern", {"type": "string", "pattern": "x"}, ["axb", "x"], ["ab"]),
    Case("format", {"type": "string", "format": "date"}, ["2024-02-29"], ["24-2-29", "x"]),
    Case("format", {"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    Case("allOf", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    Case("anyOf", {"anyOf": [WHOLE, {"type": "null"}]}, [1, None], ["a", 1.5]),
    Case("oneOf", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    Case(
        "oneOf",
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}, "v": WHOLE}, "required": ["k", "v"]},
                {"type": "object", "properties": {"k": {"const": "b"}, "w": TEXT}, "required": ["k", "w"]},
            ]
        },
        [{"k": "a", "v": 1}, {"k": "b", "w": "x"}],
        [{"k": "a"}, {"k": "c", "v": 1}],
    ),
    Case("not", {"not": {"type": "string"}}, [1, None], ["a"]),
    Case("if", {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 7}}, [3, 6], [8]),
    Case("then", {"type": "integer", "if": {"minimum": 5}, "then": {"maximum": 7}}, [3, 6], [8]),
    Case("else", {"type": "integer", "if": {"minimum": 5}, "else": {"maximum": 2}}, [1, 6], [4]),
    Case(
        "$ref",
        {"$defs": {"n": WHOLE}, "type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]},
        [{"x": 1}],
        [{"x": "a"}],
    ),
    Case(
        "$ref",
        {
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {"v": WHOLE, "next": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
                    "required": ["v", "next"],
                }
            },
            "$ref": "#/$defs/t",
        },
        [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}],
        [{"v": 1, "next": 3}],
    ),
    Case("definitions", {"definitions": {"n": WHOLE}, "$ref": "#/definitions/n"}, [1], ["a"]),
    Case("$anchor", {"$defs": {"n": {"$anchor": "whole", **WHOLE}}, "$ref": "#whole"}, [1], ["a"]),
    Case("$dynamicRef", {"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}}, [[[]]], [[1]]),
    Case("contentEncoding", {"type": "string", "contentEncoding": "base64"}, ["YQ=="], ["?"]),
    Case("nullable", {"type": "string", "nullable": True}, ["a", None], [1]),
]
