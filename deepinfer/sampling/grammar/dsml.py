"""Tool calls in V4.1's format as Lark rules. The marker `｜DSML｜` is a token of its own, which no text can write.

    <｜DSML｜ calls>
    <｜DSML｜ invoke name="weather">
    <｜DSML｜ parameter name="city" string="true">Rome</｜DSML｜ parameter>
    <｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>
    </｜DSML｜ invoke>
    </｜DSML｜ calls>

Parameters come in the order of the tool's schema; texts as they are, other values as JSON.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from deepinfer.sampling.grammar.json_keywords import schema_problems
from deepinfer.sampling.grammar.lark_text import json_value, quoted, regex

if TYPE_CHECKING:
    from deepinfer.structured import Tool, ToolCalls

_MARKER = "｜DSML｜"
_NO_TEXT = {"type": ["object", "array", "number", "boolean", "null"]}
_TEXT_KEYWORDS = ("minLength", "maxLength", "pattern", "format")


def tool_rules(grammar: ToolCalls, marker: str) -> str:
    """Rules after the first marker or, where the prompt has opened the block, after its first line."""
    lines = [f'parameter_end: "</" {marker} " parameter>\\n"']
    lines.append(f"TEXT: /(?s:.*)<\\// & ~/(?s:.*){_MARKER}(?s:.*)/")
    calls = []
    for number, tool in enumerate(grammar.tools):
        body, rules = _parameters(tool, number, marker)
        name = json.dumps(f" invoke name={json.dumps(tool.name, ensure_ascii=False)}>\n", ensure_ascii=False)
        lines += [*rules, f'call_{number}: "<" {marker} {name} {body} "</" {marker} " invoke>\\n"']
        calls.append(f"call_{number}")
    opening = "" if grammar.opened else '" calls>\\n" '
    lines.append(f"call: {' | '.join(calls)}")
    return f'start: {opening}call+ "</" {marker} " calls>"\n' + "\n".join(lines) + "\n"


def loosened(tool: Tool) -> list[str]:
    """Why a tool's schema is not enforced to the letter; empty where it is."""
    problems = schema_problems(tool.parameters, "llguidance")
    if not problems and set(tool.parameters) & {"anyOf", "allOf", "oneOf", "$ref", "patternProperties"}:
        problems.append("#: parameters are told apart by properties only")
    return problems


def _parameters(tool: Tool, number: int, marker: str) -> tuple[str, list[str]]:
    """The parameters of one call, and the rules that they need."""
    schema = tool.parameters
    properties = schema.get("properties")
    free = bool(loosened(tool)) and not tool.strict
    head = f'"<" {marker} " parameter name=\\""'
    if free or not isinstance(properties, dict) or not properties:
        if not free and schema.get("additionalProperties") is False:
            return "", []
        value = f'"\\" string=\\"true\\">" TEXT {marker} " parameter>\\n"'
        other = f'"\\" string=\\"false\\">" {json_value(_NO_TEXT)} parameter_end'
        return f"any_{number}*", [f'any_{number}: {head} /[^"<>\\n]+/ ({value} | {other})']
    required = schema.get("required", ())
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    parts, rules = [], []
    for index, (name, one) in enumerate(properties.items()):
        rule = f"parameter_{number}_{index}"
        forms = _forms(_resolved(one, shared), shared, marker)
        key = json.dumps(json.dumps(name, ensure_ascii=False)[1:], ensure_ascii=False)
        rules.append(f"{rule}: {head} {key} ({' | '.join(forms)})")
        parts.append(rule if name in required else f"[{rule}]")
    return " ".join(parts), rules


def _resolved(schema: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema with a reference at its top followed."""
    for _ in range(8):
        found = (
            re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", schema.get("$ref", ""))
            if isinstance(schema, dict)
            else None
        )
        target = shared.get(found[1], {}).get(found[2]) if found else None
        if target is None:
            break
        schema = target
    return schema if isinstance(schema, dict) else {}


def _forms(schema: dict[str, Any], shared: dict[str, Any], marker: str) -> list[str]:
    """How a value may be written: as text, as JSON, or either."""
    text, other = _split(schema)
    forms = []
    if text is not None:
        forms.append(f'" string=\\"true\\">" {_text(text, marker)}')
    if other is not None:
        forms.append(f'" string=\\"false\\">" {json_value({**shared, **other})} parameter_end')
    return forms


def _split(schema: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What of a schema speaks of texts, and what of other values; None where there is no such part."""
    if "anyOf" in schema:
        parts = [_split(one) if isinstance(one, dict) else (None, one) for one in schema["anyOf"]]
        texts = [text for text, _ in parts if text is not None]
        others = [other for _, other in parts if other is not None]
        text = None if not texts else texts[0] if len(texts) == 1 else {}
        return text, {"anyOf": others} if others else None
    for name in ("enum", "const"):
        if name in schema:
            values = schema["enum"] if name == "enum" else [schema["const"]]
            words = [value for value in values if isinstance(value, str)]
            rest = [value for value in values if not isinstance(value, str)]
            return ({"enum": words} if words else None), ({"enum": rest} if rest else None)
    types = schema.get("type")
    kinds = [types] if isinstance(types, str) else types
    limits = {name: schema[name] for name in _TEXT_KEYWORDS if name in schema}
    if kinds is None:
        if set(schema) & {"oneOf", "allOf", "$ref"}:
            return None, schema
        return limits, {**schema, **_NO_TEXT}
    rest = [kind for kind in kinds if kind != "string"]
    return (limits if "string" in kinds else None), ({**schema, "type": rest} if rest else None)


def _text(schema: dict[str, Any], marker: str) -> str:
    """A text and what closes its parameter."""
    end = f'{marker} " parameter>\\n"'
    if "enum" in schema:
        return f'({" | ".join(map(quoted, schema["enum"]))}) "</" {end}'
    if "pattern" in schema:
        pattern = schema["pattern"]
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if pattern.endswith("$") else "(?s:.*)"
        whole = pattern.removeprefix("^").removesuffix("$")
        return f'{regex(f"{before}({whole}){after}")} "</" {end}'
    if "minLength" in schema or "maxLength" in schema:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return f"/(?s:.{{{least},{most}}})<\\// {end}"
    return f"TEXT {end}"
