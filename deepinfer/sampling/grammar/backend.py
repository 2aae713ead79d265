"""What the engine's side of structured output asks of a library: compile once, then one matcher for each answer.

Shapes: V vocabulary of the model · W = ceil(V / 32) words of a packed mask; bit t of the mask says that token t is legal.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.structured import Grammar

MARKERS = ("<think>", "</think>", "｜DSML｜")  # never part of a text that a grammar speaks of, special or not


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or whose matcher has met a limit; the message says why."""


class Matcher(Protocol):
    """Where one answer stands in its grammar."""

    def mask(self) -> np.ndarray:
        """uint32 [W] of the tokens that may follow, the end of the answer left out. Raises GrammarError."""

    def accept(self, tokens: Sequence[int]) -> str | None:
        """Go on by some tokens, or by none of them and say why. The end of the answer is none of them.

        Raises GrammarError where a limit is met; the matcher is then of no more use.
        """

    def rollback(self, num_tokens: int) -> None:
        """Take back the newest tokens."""

    def forced(self) -> list[int]:
        """Tokens of the text that must follow; may be empty although something is forced."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer may end here."""


class Compiled(Protocol):
    """A grammar, ready for any number of answers."""

    size_bytes: int  # of memory, estimated where the library does not tell

    def matcher(self) -> Matcher:
        """A matcher at the beginning, with all of its limits for itself. Called from any thread. Raises GrammarError."""


class GrammarBackend(Protocol):
    """A library. `compile` may be called from any thread."""

    name: str

    def compile(self, grammar: Grammar) -> Compiled:
        """Raises GrammarError where it cannot be."""


class LateBackend:
    """A backend that is made by its first compilation: libraries and their tables cost up to seconds."""

    def __init__(self, name: str, make: Callable[[], GrammarBackend]) -> None:
        self.name = name
        self._make = make
        self._made: GrammarBackend | None = None
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> Compiled:
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made.compile(grammar)


class Vocabulary:
    """The tokens as a grammar sees them: bytes of those that write text; the others only where they are named."""

    def __init__(self, tokenizer: BpeTokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        self.eos_token_ids = tuple(eos_token_ids)
        self.num_tokens = min(tokenizer.vocab_size, vocab_size)

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that write no text."""
        tokenizer = self.tokenizer
        markers = {tokenizer.token_id(marker) for marker in MARKERS}
        return frozenset(
            token_id
            for token_id in range(self.num_tokens)
            if tokenizer.is_special(token_id) or token_id in markers or not tokenizer.token_bytes(token_id)
        )

    def all_legal(self) -> np.ndarray:
        """uint32 [W]; the bits beyond V are clear."""
        mask = np.full(self.num_words, 0xFFFFFFFF, dtype=np.uint32)
        if self.vocab_size % 32:
            mask[-1] = (1 << (self.vocab_size % 32)) - 1
        return mask

    def only(self, token_ids: Sequence[int]) -> np.ndarray:
        """uint32 [W] with these tokens legal."""
        mask = np.zeros(self.num_words, dtype=np.uint32)
        allow(mask, token_ids)
        return mask


def allow(mask: np.ndarray, token_ids: Sequence[int]) -> None:
    """Set the bits of some tokens in a packed mask."""
    for token_id in token_ids:
        mask[token_id >> 5] |= np.uint32(1 << (token_id & 31))


def is_legal(mask: np.ndarray, token_id: int) -> bool:
    """Whether a packed mask has the bit of a token."""
    return bool(int(mask[token_id >> 5]) >> (token_id & 31) & 1)
