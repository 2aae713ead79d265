"""A request's grammar as text in llguidance's dialect of Lark.

Text is matched by bytes, and nothing is forced on top of what is legal (`no_forcing`): the library would otherwise allow
only one way to cut forced text into tokens, and computes forced text without a limit. Whitespace between the parts of a
JSON value is bounded: one space, or a line break with up to 16 spaces of indentation.
Syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re

from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from deepinfer.sampling.grammar.backend import GrammarError, Vocabulary
from deepinfer.sampling.grammar.dsml import tool_rules
from deepinfer.sampling.grammar.gbnf import plain_gbnf
from deepinfer.sampling.grammar.lark_text import escaped, json_value, quoted, regex
from deepinfer.sampling.grammar.problems import parsed_schema
from deepinfer.structured import Choice, Ebnf, Grammar, JsonObject, JsonSchema, Regex, StructuralTag, ToolCalls

HEAD = '%llguidance {"no_forcing": true}\n'
ANY_TEXT = "/(?s:.*)/"
_NAMES = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/|\b[A-Z][A-Z0-9_]*\b')


def lark_of(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The text for a grammar, its text trigger included. Raises GrammarError where it cannot be written."""
    if isinstance(grammar, StructuralTag):
        return HEAD + _structural_tag(grammar, vocabulary)
    if isinstance(grammar, Ebnf):
        text = _ebnf(grammar.grammar)
        if not grammar.trigger:
            return HEAD + text
        parts = [
            {"name": "answer", "lark_grammar": HEAD + _after_trigger(grammar.trigger, "@body", vocabulary)},
            {"name": "body", "lark_grammar": HEAD + text},
        ]
        return json.dumps({"grammars": parts})
    if isinstance(grammar, ToolCalls):
        otherwise = _body(grammar.otherwise) if grammar.otherwise is not None else ""
        return HEAD + tool_rules(grammar, token(vocabulary, "｜DSML｜"), otherwise)
    body = _body(grammar)
    return HEAD + (_after_trigger(grammar.trigger, body, vocabulary) if grammar.trigger else f"start: {body}\n")


def token(vocabulary: Vocabulary, spelling: str) -> str:
    token_id = vocabulary.tokenizer.token_id(spelling)
    if token_id is None:
        raise GrammarError(f"the tokenizer has no token {spelling}, which this grammar needs: use another model")
    return f"<[{token_id}]>"


def _body(grammar: Grammar) -> str:
    if isinstance(grammar, JsonSchema):
        return json_value(parsed_schema(grammar.schema))
    if isinstance(grammar, JsonObject):
        return json_value({"type": "object"})
    if isinstance(grammar, Regex):
        return regex(grammar.pattern)
    assert isinstance(grammar, Choice), grammar
    return f"/({'|'.join(map(escaped, grammar.choices))})/"


def _ebnf(text: str) -> str:
    """Lark as it is; GBNF translated, its rules not made into lexemes, which would be greedy."""
    if "%llguidance" in text:
        raise GrammarError("ebnf holds a %llguidance line: its options are the engine's, leave it out")
    if is_lark_syntax(text):
        return text
    try:
        lark = gbnf_to_lark(plain_gbnf(text))
    except GrammarError:
        raise
    except RecursionError as error:
        raise GrammarError("ebnf is nested too deeply: flatten it") from error
    except Exception as error:  # the library raises nothing narrower
        raise GrammarError(f"ebnf cannot be read as GBNF: {error}") from error
    lark = lark.removeprefix("%llguidance {}")
    return _NAMES.sub(lambda found: found[0] if found[0][0] in '"/' else found[0].lower(), lark)


def _after_trigger(trigger: str, body: str, vocabulary: Vocabulary) -> str:
    """Free text, which may end, or goes on with the trigger and then the body."""
    wrapped = body if body.startswith(("%json", "@", "/")) else f"({body})"
    return f"start: trigger_0 {wrapped} | FREE\n{_trigger(0, trigger, vocabulary)}FREE: {ANY_TEXT}\n"


def _structural_tag(grammar: StructuralTag, vocabulary: Vocabulary) -> str:
    triggers = grammar.triggers or tuple(dict.fromkeys(tag.begin for tag in grammar.tags))
    lines, names = [], []
    for number, trigger in enumerate(triggers):
        branches = []
        for tag in grammar.tags:
            if next(one for one in triggers if tag.begin.startswith(one)) == trigger:
                content = regex(tag.pattern) if tag.pattern is not None else json_value(parsed_schema(tag.schema))
                rest = _pieces(tag.begin.removeprefix(trigger), vocabulary)
                branches.append(" ".join([*rest, content, *_pieces(tag.end, vocabulary)]))
        if branches:
            names.append(f"tag_{number}")
            lines.append(_trigger(number, trigger, vocabulary))
            lines.append(f"tag_{number}: trigger_{number} ({' | '.join(branches)})\n")
    tag_rule = f"tag: {' | '.join(names)}\n"
    start = {
        (False, False): "tag* FREE",
        (True, False): "tag tag* FREE",
        (False, True): "tag | FREE",
        (True, True): "tag",
    }[grammar.at_least_one, grammar.stop_after_first]
    return f"start: {start}\n{tag_rule}{''.join(lines)}" + ("" if start == "tag" else f"FREE: {ANY_TEXT}\n")


def _trigger(number: int, trigger: str, vocabulary: Vocabulary) -> str:
    """A rule for free text up to and with a trigger, which may hold special tokens."""
    pieces = _pieces(trigger, vocabulary)
    if len(pieces) == 1 and pieces[0].startswith('"'):
        return f"trigger_{number}[lazy]: {ANY_TEXT} {pieces[0]}\n"
    if pieces[0].startswith("<["):
        return f"trigger_{number}: {ANY_TEXT} {' '.join(pieces)}\n"
    before = escaped(json.loads(pieces[0]))
    return f"trigger_{number}: /(?s:.*){before}/ {' '.join(pieces[1:])}\n"


def _pieces(text: str, vocabulary: Vocabulary) -> list[str]:
    """A text as quoted texts, and special tokens where it spells them."""
    pieces: list[str] = []
    held = b""
    for token_id in vocabulary.tokenizer.encode(text):
        if token_id in vocabulary.special:
            pieces += [quoted(held.decode())] if held else []
            pieces.append(f"<[{token_id}]>")
            held = b""
        else:
            held += vocabulary.tokenizer.token_bytes(token_id)
    return [*pieces, quoted(held.decode())] if held else pieces
