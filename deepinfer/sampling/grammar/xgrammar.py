"""Grammars through xgrammar: masks are quicker, compilation is slower, and fewer keywords of JSON Schema are enforced."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.sampling.grammar.backend import GrammarError, Vocabulary
from deepinfer.sampling.grammar.forced_text import forced_tokens
from deepinfer.sampling.grammar.problems import parsed_schema
from deepinfer.structured import Choice, Ebnf, Grammar, JsonSchema, Regex, StructuralTag, Tag, ToolCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WHITESPACE = 16  # characters between two parts of a JSON value
_JSON_OBJECT = {"type": "object"}


class Xgrammar:
    """Implements GrammarBackend."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            import xgrammar
        except ImportError as error:
            raise GrammarError(
                f"grammar=xgrammar needs xgrammar, which is not installed ({error}): type grammar=llguidance, or "
                "pip install -e '.[xgrammar]'"
            ) from error
        self.vocabulary = vocabulary
        self._library = xgrammar
        texts = [
            b"" if token_id in vocabulary.special else vocabulary.tokenizer.token_bytes(token_id)
            for token_id in range(vocabulary.num_tokens)
        ]
        info = xgrammar.TokenizerInfo(
            texts,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, grammar: Grammar) -> XgrammarCompiled:
        try:
            return XgrammarCompiled(self._library, self._compiled(grammar), self.vocabulary)
        except RuntimeError as error:
            raise GrammarError(_plain(error)) from error

    def _compiled(self, grammar: Grammar) -> Any:
        if isinstance(grammar, ToolCalls):
            raise GrammarError("tool calls are enforced by llguidance only: type grammar=llguidance")
        if isinstance(grammar, StructuralTag):
            return self._compiler.compile_structural_tag(_tagged(grammar))
        if grammar.trigger:
            tag = {"type": "tag", "begin": grammar.trigger, "content": _content(grammar), "end": ""}
            return self._compiler.compile_structural_tag(_free_then([grammar.trigger], [tag], False, True))
        if isinstance(grammar, Regex):
            return self._compiler.compile_regex(grammar.pattern)
        if isinstance(grammar, Ebnf):
            return self._compiler.compile_grammar(grammar.grammar)
        if isinstance(grammar, Choice):
            return self._compiler.compile_grammar(f"root ::= {' | '.join(map(_literal, grammar.choices))}")
        schema = parsed_schema(grammar.schema) if isinstance(grammar, JsonSchema) else _JSON_OBJECT
        return self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=True, max_whitespace_cnt=MAX_WHITESPACE, strict_mode=False
        )


class XgrammarCompiled:
    def __init__(self, library: Any, compiled: Any, vocabulary: Vocabulary) -> None:
        self._library = library
        self._compiled = compiled
        self._vocabulary = vocabulary
        self.size_bytes = int(compiled.memory_size_bytes)

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._library.GrammarMatcher(self._compiled), self._vocabulary)


class XgrammarMatcher:
    """Implements Matcher."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self) -> np.ndarray:
        mask = np.full((1, self._vocabulary.num_words), -1, dtype=np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        found = mask[0].view(np.uint32) & self._vocabulary.all_legal()
        for token_id in self._vocabulary.eos_token_ids:
            found[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return found

    def accept(self, tokens: Sequence[int]) -> str | None:
        for number, token in enumerate(tokens):
            if not self._matcher.accept_token(token):
                self.rollback(number)
                return f"token {token} is not legal in its place"
        return None

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def forced(self) -> list[int]:
        return forced_tokens(self, self._vocabulary)

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


def _tagged(grammar: StructuralTag) -> dict[str, Any]:
    triggers = list(grammar.triggers or dict.fromkeys(tag.begin for tag in grammar.tags))
    tags = [{"type": "tag", "begin": tag.begin, "content": _content(tag), "end": tag.end} for tag in grammar.tags]
    return _free_then(triggers, tags, grammar.at_least_one, grammar.stop_after_first)


def _free_then(triggers: list[str], tags: list[Any], at_least_one: bool, stop_after_first: bool) -> dict[str, Any]:
    tagged = {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": tags,
        "at_least_one": at_least_one,
        "stop_after_first": stop_after_first,
    }
    return {"type": "structural_tag", "format": tagged}


def _content(part: Grammar | Tag) -> dict[str, Any]:
    if isinstance(part, Regex) or (isinstance(part, Tag) and part.pattern is not None):
        return {"type": "regex", "pattern": part.pattern}
    if isinstance(part, Ebnf):
        return {"type": "grammar", "grammar": part.grammar}
    if isinstance(part, Choice):
        return {"type": "grammar", "grammar": f"root ::= {' | '.join(map(_literal, part.choices))}"}
    schema = parsed_schema(part.schema) if isinstance(part, JsonSchema | Tag) else _JSON_OBJECT
    return {"type": "json_schema", "json_schema": schema}


def _literal(text: str) -> str:
    """A text in GBNF."""
    return json.dumps(text, ensure_ascii=False)


def _plain(error: Exception) -> str:
    """The library's message without where in its source it comes from."""
    head, _, rest = str(error).partition(": ")
    return (rest if head.startswith("[") else str(error)).strip()
