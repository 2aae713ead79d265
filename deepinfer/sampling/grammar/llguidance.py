"""Grammars through llguidance, which compiles lazily and has limits of its own for every part of its work."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import llguidance
import numpy as np

from deepinfer.sampling.grammar.backend import GrammarError, Vocabulary
from deepinfer.sampling.grammar.forced_text import forced_tokens
from deepinfer.sampling.grammar.lark import HEAD, lark_of
from deepinfer.sampling.grammar.library_errors import plain_error
from deepinfer.structured import Ebnf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepinfer.structured import Grammar

# What one mask may cost (fuel, items) and one answer may hold (states); the library's other limits are as it has them.
STEP_LEXER_FUEL, STEP_MAX_ITEMS, MAX_LEXER_STATES = 200_000, 50_000, 100_000
_BASE_BYTES, _BYTES_PER_LETTER = 64 * 1024, 64  # an estimate of what a compiled grammar holds


class _Tokens:
    """The tokenizer in the shape that the library asks for."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.tokens = [vocabulary.tokenizer.token_bytes(token_id) for token_id in range(vocabulary.num_tokens)]
        self.special_token_ids = sorted(vocabulary.special)
        self._encode = vocabulary.tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


class Llguidance:
    """Implements GrammarBackend."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        wrapped = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(
            wrapped, eos_token=list(vocabulary.eos_token_ids), slices=llguidance.LLTokenizer.json_slices()
        )
        self._limits = llguidance.LLParserLimits(
            step_lexer_fuel=STEP_LEXER_FUEL,
            step_max_items=STEP_MAX_ITEMS,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )

    def compile(self, grammar: Grammar) -> LlguidanceCompiled:
        """Also computes the first mask, so that a grammar that runs into a limit at once fails here."""
        text = lark_of(grammar, self.vocabulary)
        typed = isinstance(grammar, Ebnf) and not grammar.trigger and text == HEAD + grammar.grammar
        compiled = LlguidanceCompiled(lambda: self._matcher(text, typed), _BASE_BYTES + _BYTES_PER_LETTER * len(text))
        compiled.first.mask()
        return compiled

    def _matcher(self, text: str, typed: bool) -> LlguidanceMatcher:
        """Made from the text each time: copies of a matcher would share one lexer, and its states with it."""
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(plain_error(matcher.get_error(), typed=typed))
        return LlguidanceMatcher(matcher, self.vocabulary)


class LlguidanceCompiled:
    def __init__(self, make: Callable[[], LlguidanceMatcher], size_bytes: int) -> None:
        self._make = make
        self.first = make()
        self._unused = deque([self.first])  # for the first who asks; a deque, since several threads may
        self.size_bytes = size_bytes

    def matcher(self) -> LlguidanceMatcher:
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()


class LlguidanceMatcher:
    """Implements Matcher."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self) -> np.ndarray:
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)[: self._vocabulary.num_words]
        if self._matcher.is_error():
            raise GrammarError(plain_error(self._matcher.get_error()))
        mask = np.zeros(self._vocabulary.num_words, dtype=np.uint32)
        mask[: len(packed)] = packed
        for token_id in self._vocabulary.eos_token_ids:
            mask[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return mask

    def accept(self, tokens: Sequence[int]) -> str | None:
        taken = self._matcher.try_consume_tokens(list(tokens))
        if taken == len(tokens):
            return None
        if self._matcher.is_error():
            raise GrammarError(plain_error(self._matcher.get_error()))
        self.rollback(taken)
        return f"token {tokens[taken]} is not legal in its place"

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def forced(self) -> list[int]:
        return forced_tokens(self, self._vocabulary)

    @property
    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())
