"""What an answer has to look like: the grammars that a request may bring. Data only, no torch.

SamplingParams(grammar=JsonSchema({"type": "object", "properties": {"city": {"type": "string"}}}))
SamplingParams(grammar={"regex": "yes|no"})          # the same as Regex("yes|no")
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Grammar(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Where in the answer the grammar begins. Without any of these fields it is the whole answer.

    `starts_after`: everything is free up to this token (`</think>`), then the rest holds. `trigger`: text is free until
    this text appears, the grammar follows it. `trigger_token_ids`: the same for a run of tokens. `bound_token_id`: when
    this token appears in free text, the trigger's tokens are forced one by one, then the grammar.
    """

    starts_after: int | None = None
    trigger: str = ""
    trigger_token_ids: tuple[int, ...] = ()
    bound_token_id: int | None = None


class JsonSchema(Grammar, frozen=True, tag="json_schema"):
    """A JSON value under a JSON Schema, given as a value or as JSON text."""

    schema: dict[str, Any] | bool | str


class JsonObject(Grammar, frozen=True, tag="json_object"):
    """Any JSON object."""


class Regex(Grammar, frozen=True, tag="regex"):
    """A text that matches a regular expression (of Rust's `regex`: no look-around, no back-references) as a whole."""

    pattern: str


class Ebnf(Grammar, frozen=True, tag="ebnf"):
    """A context-free grammar: GBNF (`root ::= …`, as llama.cpp and xgrammar read it) or, for llguidance, Lark (`start: …`)."""

    grammar: str


class Choice(Grammar, frozen=True, tag="choice"):
    """One of some texts."""

    choices: tuple[str, ...]


class Tag(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`begin`, content, `end`. The content is JSON under `schema` or, where it is given, what `pattern` matches."""

    begin: str
    end: str
    schema: dict[str, Any] | bool | str = True
    pattern: str | None = None


class StructuralTag(Grammar, frozen=True, tag="structural_tag", kw_only=True):
    """Free text with tags in it. Once one of `triggers` has been written, a tag that begins with it follows.

    Without `triggers` each tag's own beginning is one. `at_least_one`: the answer cannot end before a tag is closed.
    `stop_after_first`: it ends with the first tag.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] = ()
    at_least_one: bool = False
    stop_after_first: bool = False


class Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call. Not `strict`: what of its schema cannot be enforced is left free."""

    name: str
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolCalls(Grammar, frozen=True, tag="tool_calls", kw_only=True):
    """Calls in V4.1's format. `opened`: the prompt has written the beginning of the block, so a call must follow.

    `otherwise`: the whole answer is calls or, where it is none, has this form.
    """

    tools: tuple[Tool, ...]
    opened: bool = False
    otherwise: JsonSchema | JsonObject | Regex | None = None


AnyGrammar = JsonSchema | JsonObject | Regex | Ebnf | Choice | StructuralTag | ToolCalls
_SHORT = {"json_schema": "schema", "regex": "pattern", "ebnf": "grammar", "choice": "choices"}


def as_grammar(value: Any) -> Any:
    """A dict as the Grammar it describes: {"kind": "regex", "pattern": …} or the short {"regex": …}.

    Anything else comes back as it is. Raises ValueError where a dict describes none.
    """
    if not isinstance(value, dict):
        return value
    kinds = [kind for kind in (*_SHORT, "json_object") if kind in value]
    if "kind" not in value and len(kinds) == 1:
        kind = kinds[0]
        if kind == "json_object" and value[kind] is not True and value[kind] != {}:
            raise ValueError(f'grammar={value!r:.80}: write {{"json_object": true}}, or leave the grammar out')
        rest = {name: item for name, item in value.items() if name != kind}
        value = {"kind": kind, **rest} | ({_SHORT[kind]: value[kind]} if kind in _SHORT else {})
    known = "json_schema, json_object, regex, ebnf, choice, structural_tag, tool_calls"
    if "kind" not in value:
        raise ValueError(f'grammar={value!r:.80} names no kind: write {{"regex": "yes|no"}}, or one of {known}')
    try:
        return msgspec.convert(value, AnyGrammar)
    except msgspec.ValidationError as error:
        raise ValueError(f"grammar={value!r:.80} cannot be read: {error}; kinds are {known}") from error
