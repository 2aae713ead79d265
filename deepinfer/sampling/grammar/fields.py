"""Whether the fields of a grammar hold what they are declared to: structs that are made in Python check nothing themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.structured import Grammar, Tag, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

_WANTED = {
    "starts_after": "a token id, or None",
    "bound_token_id": "a token id, or None",
    "trigger": "a text, '' for none",
    "trigger_token_ids": "a tuple of token ids, () for none",
    "schema": "a JSON Schema: an object with texts as names, True, False, or its JSON text",
    "parameters": "a JSON Schema: an object with texts as names, {} for a function without parameters",
    "pattern": "a regular expression, as a text",
    "grammar": "a grammar, as a text",
    "choices": "a tuple of texts, such as ('yes', 'no')",
    "tags": "a tuple of Tag",
    "tools": "a tuple of Tool",
    "triggers": "a tuple of texts, () for the tags' own beginnings",
    "begin": "a text",
    "end": "a text",
    "name": "a text",
}


def field_problems(grammar: Grammar) -> list[str]:
    """One sentence for each field that holds something else; then nothing else of the grammar can be looked at."""
    return list(_fields(grammar, "grammar"))


def _fields(part: Grammar | Tag | Tool, place: str) -> Iterator[str]:
    for field in msgspec.structs.fields(type(part)):
        value = getattr(part, field.name)
        try:
            msgspec.convert(value, field.type)
        except (msgspec.ValidationError, OverflowError, RecursionError):
            yield f"{place}.{field.name}={value!r:.60}: give {_WANTED.get(field.name, 'True or False')}"
            continue
        if broken := broken_text(value):
            yield f"{place}.{field.name} holds {broken!a:.60}, half a surrogate pair, which no bytes stand for: leave it out"
        if field.name in ("tags", "tools"):
            for number, one in enumerate(value):
                if isinstance(one, Tag | Tool):
                    yield from _fields(one, f"{place}.{field.name}[{number}]")


def broken_text(value: Any) -> str:
    """A text in a value that cannot be written as bytes; empty where there is none."""
    pending, seen = [value], set()
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            if any("\ud800" <= character <= "\udfff" for character in one):
                return one
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))  # a value may hold itself
            pending += [*one, *one.values()] if isinstance(one, dict) else one
    return ""
