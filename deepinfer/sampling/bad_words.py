"""Texts that must not occur in an answer, however they are cut into tokens.

A token is ruled out when its own bytes hold the text, or when the answer's last bytes and the token's first ones make it up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_WINDOW_BYTES = 8  # of a word's beginning that are compared at once, as one 64-bit number


class TokenBytes:
    """The bytes of every token of a vocabulary, and which tokens start with or hold given bytes."""

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self.bytes_of = list(bytes_of)
        order = sorted(range(len(self.bytes_of)), key=self.bytes_of.__getitem__)
        self._sorted = [self.bytes_of[i] for i in order]
        self._order = np.array(order, dtype=np.int64)
        lengths = np.array([len(token) for token in self.bytes_of], dtype=np.int64)
        self.longest = int(lengths.max(initial=0))
        self._token_at = np.repeat(np.arange(len(lengths)), lengths)  # by place in all bytes in a row
        self._left_at = np.repeat(np.cumsum(lengths), lengths) - np.arange(
            len(self._token_at)
        )  # bytes to the token's end
        padded = np.frombuffer(b"".join(self.bytes_of) + bytes(_WINDOW_BYTES), np.uint8).astype(np.uint64)
        self._window_at = np.zeros(len(self._token_at), np.uint64)
        for i in range(_WINDOW_BYTES):
            self._window_at |= padded[i : i + len(self._window_at)] << np.uint64(8 * i)

    def starting_with(self, prefix: bytes) -> np.ndarray:
        first = bisect_left(self._sorted, prefix)
        last = _end_of_prefix(self._sorted, prefix, first)
        return self._order[first:last]

    def holding(self, words: Sequence[bytes]) -> np.ndarray:
        """Ids, rising, of the tokens that hold at least one of the words. A few passes over the vocabulary for all of them."""
        by_window: dict[int, list[bytes]] = {}
        for word in words:
            if len(word) <= self.longest:
                by_window.setdefault(min(len(word), _WINDOW_BYTES), []).append(word)
        found = [self._holding(size, group) for size, group in by_window.items()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *found]))

    def _holding(self, size: int, words: list[bytes]) -> np.ndarray:
        """The tokens that hold a word of exactly `size` bytes, or of at least that many where it is the window's size."""
        starts = np.unique(np.array([int.from_bytes(word[:size], "little") for word in words], np.uint64))
        begun = self._window_at & np.uint64((1 << 8 * size) - 1)
        nearest = starts[np.minimum(np.searchsorted(starts, begun), len(starts) - 1)]
        places = np.flatnonzero((nearest == begun) & (self._left_at >= size))
        if size == _WINDOW_BYTES:
            known, lengths = set(words), sorted({len(word) for word in words})
            places = np.array([place for place in places if self._stands_at(int(place), known, lengths)], np.int64)
        return self._token_at[places]

    def _stands_at(self, place: int, words: set[bytes], lengths: list[int]) -> bool:
        left = self.bytes_of[self._token_at[place]][-self._left_at[place] :]
        return any(left[:length] in words for length in lengths if length <= len(left))


def _end_of_prefix(texts: list[bytes], prefix: bytes, first: int) -> int:
    """Where those that start with `prefix`, of which the first stands at `first`, end in a sorted list."""
    return bisect_right(texts, prefix, lo=first, key=lambda text: text[: len(prefix)])


class BadWords:
    """The ruled-out tokens of one list of words, as an answer grows. It remembers nothing of the answer."""

    def __init__(self, words: Sequence[str], vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._words = sorted({word.encode() for word in words})
        self.always = vocabulary.holding(self._words)
        self._longest = max(len(word) for word in self._words)

    def banned(self, answer_ids: np.ndarray) -> np.ndarray:
        """Ids that may not follow the answer's tokens so far."""
        return np.concatenate([self.always, self.completing(answer_ids)])

    def completing(self, answer_ids: np.ndarray) -> np.ndarray:
        """Of them, those that complete a word which the answer has begun; `always` are the others."""
        tail = b""
        for token_id in answer_ids[::-1]:
            tail = self._vocabulary.bytes_of[token_id] + tail
            if len(tail) >= self._longest:
                break
        return np.concatenate([np.empty(0, np.int64), *self._completing(tail)])

    def _completing(self, tail: bytes) -> list[np.ndarray]:
        """The tokens whose first bytes complete a word that the answer's last bytes begin."""
        found = []
        for size in range(1, min(len(tail), self._longest - 1) + 1):
            begun = tail[-size:]
            first = bisect_left(self._words, begun)
            last = _end_of_prefix(self._words, begun, first)
            rests = {word[size:] for word in self._words[first:last] if len(word) > size}
            found += [self._vocabulary.starting_with(rest) for rest in rests]
        return found
