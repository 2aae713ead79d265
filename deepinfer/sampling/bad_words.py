"""Texts that must not occur in an answer, however they are cut into tokens.

A token is ruled out when its own bytes hold the text, or when the answer's last bytes and the token's first ones make it up.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class TokenBytes:
    """The bytes of every token of a vocabulary, and which tokens start with or hold given bytes."""

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self.bytes_of = list(bytes_of)
        self._order = sorted(range(len(self.bytes_of)), key=self.bytes_of.__getitem__)
        self._sorted = [self.bytes_of[i] for i in self._order]

    def starting_with(self, prefix: bytes) -> np.ndarray:
        first = bisect_left(self._sorted, prefix)
        last = first
        while last < len(self._sorted) and self._sorted[last].startswith(prefix):
            last += 1
        return np.array(self._order[first:last], dtype=np.int64)

    def holding(self, part: bytes) -> np.ndarray:
        return np.array([i for i, token in enumerate(self.bytes_of) if part in token], dtype=np.int64)


class BadWords:
    """The ruled-out tokens of one request, as the answer grows."""

    def __init__(self, words: Sequence[str], vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        encoded = [word.encode() for word in words]
        self._always = np.unique(np.concatenate([vocabulary.holding(word) for word in encoded]))
        self._after: dict[bytes, list[np.ndarray]] = {}  # the answer's last bytes → tokens that would complete a word
        for word in encoded:
            for split in range(1, len(word)):
                self._after.setdefault(word[:split], []).append(vocabulary.starting_with(word[split:]))
        self._longest = max(len(word) for word in encoded)

    def banned(self, answer_ids: np.ndarray) -> np.ndarray:
        """Ids that may not follow the answer's tokens so far."""
        tail = b""
        for token_id in answer_ids[::-1]:
            tail = self._vocabulary.bytes_of[token_id] + tail
            if len(tail) >= self._longest:
                break
        parts = [ids for beginning, lists in self._after.items() if tail.endswith(beginning) for ids in lists]
        return np.concatenate([self._always, *parts])
