"""What can be seen to be wrong with a grammar without compiling it: a sentence each, with what to write instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deepinfer.sampling.grammar.fields import broken_text, field_problems
from deepinfer.sampling.grammar.json_keywords import schema_problems
from deepinfer.sampling.grammar.parameters import parameter_problems
from deepinfer.structured import (
    Choice,
    Ebnf,
    Grammar,
    JsonSchema,
    Regex,
    StructuralTag,
    ToolCalls,
    as_grammar,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deepinfer.interfaces import SamplingParams

MAX_SCHEMA_BYTES = 256 * 1024  # of JSON text
MAX_TEXT_BYTES = 64 * 1024  # of a regular expression or a grammar
MAX_CHOICES = 4096
MAX_TAGS = 256


def request_problems(params: SamplingParams, vocab_size: int) -> list[str]:
    """What holds for every backend: the kind of grammar, its token ids, and the parameters that cannot go with one."""
    grammar: Any = params.grammar
    if grammar is None:
        return []
    if isinstance(grammar, dict):
        try:
            grammar = as_grammar(grammar)
        except ValueError as error:
            return [str(error)]
    if not isinstance(grammar, Grammar):
        return [f"grammar is a {type(grammar).__name__}: give one of deepinfer.structured, such as Regex('yes|no')"]
    if problems := field_problems(grammar):
        return problems
    problems = [
        f"grammar.{name} holds {token_id!r}: the vocabulary has ids 0 to {vocab_size - 1}"
        for name in ("starts_after", "trigger_token_ids", "bound_token_id")
        for token_id in _ids(getattr(grammar, name))
        if not 0 <= token_id < vocab_size
    ]
    if grammar.trigger and (grammar.trigger_token_ids or grammar.bound_token_id is not None):
        problems.append("grammar has a trigger as text and one as token ids: give one of them")
    if params.ignore_eos and not params.stop_token_ids:
        problems.append(
            "ignore_eos is set with a grammar: once that is complete only the end of the answer is legal, so leave "
            "ignore_eos out, or give stop_token_ids"
        )
    return problems


def grammar_problems(grammar: Grammar, backend: str) -> list[str]:
    """What is wrong with the content of a grammar, and what of it `backend` does not enforce."""
    return list(_content(grammar, backend))


def _content(grammar: Grammar, backend: str) -> Iterator[str]:
    if isinstance(grammar, JsonSchema):
        yield from _schema(grammar.schema, backend)
    elif isinstance(grammar, Regex):
        yield from _text("regex", grammar.pattern)
    elif isinstance(grammar, Ebnf):
        yield from _text("ebnf", grammar.grammar)
    elif isinstance(grammar, Choice):
        yield from _choices(grammar.choices)
    elif isinstance(grammar, StructuralTag):
        yield from _tags(grammar, backend)
    elif isinstance(grammar, ToolCalls):
        yield from _tools(grammar, backend)


def parsed_schema(schema: Any) -> Any:
    """A schema as a value. Raises ValueError where it is text and no JSON."""
    return json.loads(schema) if isinstance(schema, str) else schema


def _schema(schema: Any, backend: str, name: str = "json_schema") -> Iterator[str]:
    try:
        value = parsed_schema(schema)
        size = len(json.dumps(value))
    except (ValueError, TypeError, RecursionError) as error:
        yield f"{name} is no JSON ({error}): write it as a JSON object"
        return
    if broken := broken_text(value):
        yield f"{name} holds {broken!a:.60}, half a surrogate pair, which no bytes stand for: leave it out"
    elif size > MAX_SCHEMA_BYTES:
        yield f"{name} has {size:,} bytes: there may be {MAX_SCHEMA_BYTES:,}; share its parts with $defs and $ref"
    else:
        yield from (f"{name}: {problem}" for problem in schema_problems(value, backend))


def _text(name: str, text: Any) -> Iterator[str]:
    if not (isinstance(text, str) and text):
        yield f"{name}={text!r:.60} is no text: write one, such as 'yes|no'"
    elif len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        yield f"{name} has {len(text.encode('utf-8', 'replace')):,} bytes: there may be {MAX_TEXT_BYTES:,}"


def _choices(choices: Any) -> Iterator[str]:
    if not isinstance(choices, tuple | list) or not choices:
        yield f"choice={choices!r:.60} is no list of texts: write {{'choice': ['yes', 'no']}}"
    elif len(choices) > MAX_CHOICES:
        yield f"choice has {len(choices):,} texts: there may be {MAX_CHOICES:,}"
    else:
        for text in choices:
            if not (isinstance(text, str) and text):
                yield f"choice holds {text!r:.60}: each is a text of at least one character"
                return
        yield from _size("choice", choices)


def _tags(grammar: StructuralTag, backend: str) -> Iterator[str]:
    if not grammar.tags or len(grammar.tags) > MAX_TAGS:
        yield f"structural_tag has {len(grammar.tags)} tags: there may be 1 to {MAX_TAGS}"
    if grammar.at_least_one and backend == "xgrammar":
        yield "structural_tag: at_least_one allows xgrammar no text before the first tag: type grammar=llguidance"
    if not all(grammar.triggers):
        yield "structural_tag has an empty trigger: each is a text of at least one character; without triggers, leave it out"
        return
    yield from _size(
        "structural_tag", [*grammar.triggers, *(text for tag in grammar.tags for text in (tag.begin, tag.end))]
    )
    for number, tag in enumerate(grammar.tags):
        if not tag.begin or not tag.end:
            yield f"structural_tag: tag {number} has no begin or no end: both are texts of at least one character"
        elif grammar.triggers and not any(tag.begin.startswith(trigger) for trigger in grammar.triggers):
            triggers = ", ".join(grammar.triggers)
            yield f"structural_tag: {tag.begin!r:.60} begins with none of the triggers {triggers:.200}"
        if tag.pattern is not None:
            yield from _text(f"structural_tag: pattern of tag {number}", tag.pattern)
        else:
            yield from _schema(tag.schema, backend, f"structural_tag: schema of tag {number}")


def _tools(grammar: ToolCalls, backend: str) -> Iterator[str]:
    if backend != "llguidance":
        yield f"tool calls are enforced by llguidance only, not by {backend}: type grammar=llguidance"
        return
    if not grammar.tools:
        yield "tool_calls holds no tools: give at least one"
    if grammar.otherwise is not None:
        yield from _content(grammar.otherwise, backend)
    for tool in grammar.tools:
        name = f"parameters of the tool {tool.name:.60}"
        if tool.strict:
            problems = list(_schema(tool.parameters, backend, name))
            yield from problems or (f"{name}: {problem}" for problem in parameter_problems(tool.parameters))


def _size(name: str, texts: Iterable[str]) -> Iterator[str]:
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > MAX_SCHEMA_BYTES:
        yield f"{name} has {size:,} bytes of text: there may be {MAX_SCHEMA_BYTES:,}"


def _ids(value: Any) -> tuple[Any, ...]:
    return () if value is None else tuple(value) if isinstance(value, tuple | list) else (value,)
