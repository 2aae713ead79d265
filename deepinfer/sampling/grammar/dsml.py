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
from typing import TYPE_CHECKING

from deepinfer.sampling.grammar.json_keywords import schema_problems
from deepinfer.sampling.grammar.lark_text import escaped, json_value, regex
from deepinfer.sampling.grammar.parameters import Text, anchors, forms_of, parameter_problems, shared_of

if TYPE_CHECKING:
    from deepinfer.structured import Tool, ToolCalls

_MARKER = "｜DSML｜"
_NO_TEXT = {"type": ["object", "array", "number", "boolean", "null"]}
_NO_MARKER = f"~/(?s:.*){_MARKER}(?s:.*)/"


def tool_rules(grammar: ToolCalls, marker: str, otherwise: str = "") -> str:
    """Rules after the first marker or, where the prompt has opened the block, after its first line. With `otherwise`, the
    rule of an answer without calls, they are those of the whole answer."""
    lines = [f'parameter_end: "</" {marker} " parameter>\\n"']
    lines.append(f"TEXT: /(?s:.*)<\\// & {_NO_MARKER}")
    calls = []
    for number, tool in enumerate(grammar.tools):
        body, rules = _parameters(tool, number, marker)
        name = json.dumps(f" invoke name={json.dumps(tool.name, ensure_ascii=False)}>\n", ensure_ascii=False)
        lines += [*rules, f'call_{number}: "<" {marker} {name} {body} "</" {marker} " invoke>\\n"']
        calls.append(f"call_{number}")
    opening = "" if grammar.opened else '" calls>\\n" '
    lines.append(f"call: {' | '.join(calls)}")
    block = f'{opening}call+ "</" {marker} " calls>"'
    if otherwise:
        lines.append(f'block: "\\n\\n<" {marker} {block} | "<" {marker} {block}\nother: {otherwise}')
        block = "block | other"
    return f"start: {block}\n" + "\n".join(lines) + "\n"


def loosened(tool: Tool) -> list[str]:
    """Why a tool's schema is not enforced to the letter; empty where it is."""
    return schema_problems(tool.parameters, "llguidance") or parameter_problems(tool.parameters)


def _parameters(tool: Tool, number: int, marker: str) -> tuple[str, list[str]]:
    """The parameters of one call, and the rules that they need."""
    schema = tool.parameters
    properties = schema.get("properties")
    free = bool(loosened(tool)) and not tool.strict
    head = f'"<" {marker} " parameter name=\\""'
    if free or not isinstance(properties, dict) or not properties:
        if not schema or (not free and schema.get("additionalProperties") is False):
            return "", []
        value = f'"\\" string=\\"true\\">" TEXT {marker} " parameter>\\n"'
        other = f'"\\" string=\\"false\\">" {json_value(_NO_TEXT)} parameter_end'
        return f"any_{number}*", [f'any_{number}: {head} /[^"<>\\n]+/ ({value} | {other})']
    parts, rules = [], []
    shared = shared_of(schema)
    for index, (name, one) in enumerate(properties.items()):
        rule = f"parameter_{number}_{index}"
        texts, others = forms_of(one, shared)
        if not texts and not others:  # false, which problems.py refuses where it is required
            continue
        key = json.dumps(json.dumps(name, ensure_ascii=False)[1:], ensure_ascii=False)
        forms = []
        for case, text in enumerate(texts):
            forms.append(f'" string=\\"true\\">" TEXT_{number}_{index}_{case} {marker} " parameter>\\n"')
            rules.append(f"TEXT_{number}_{index}_{case}: {_text(text)}")
        if others:
            either = others[0] if len(others) == 1 else {"anyOf": others}
            forms.append(f'" string=\\"false\\">" {json_value({**shared, **either})} parameter_end')
        rules.append(f"{rule}: {head} {key} ({' | '.join(forms)})")
        parts.append(rule if name in schema.get("required", ()) else f"[{rule}]")
    return " ".join(parts), rules


def _text(text: Text) -> str:
    """A text, and the beginning of what closes its parameter, as a terminal."""
    parts = [_NO_MARKER]
    if text.words is not None:
        parts.append(f"/({'|'.join(map(escaped, text.words))})<\\//")
    elif text.least or text.most is not None:
        parts.append(f"/(?s:.{{{text.least},{'' if text.most is None else text.most}}})<\\//")
    if text.pattern is not None:
        begin, end = anchors(text.pattern) or (False, False)
        whole = text.pattern[begin : len(text.pattern) - end]
        parts.append(regex(f"{'' if begin else '(?s:.*)'}({whole}){'' if end else '(?s:.*)'}</"))
    return " & ".join([*parts[1:], parts[0]]) if parts[1:] else f"/(?s:.*)<\\// & {parts[0]}"
