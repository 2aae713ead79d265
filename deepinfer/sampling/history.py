"""The tokens of one sequence by absolute position, and how often each occurs before a position. V vocabulary.

Everything is keyed by position: sampling a position again (after a preemption, or after rejected drafts) overwrites what
stood there, so nothing is ever counted twice.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Follower(Protocol):
    """Whoever counts a history's tokens as well."""

    def back_to(self, position: int) -> None:
        """Tokens from `position` on are about to be forgotten."""


class History:
    """Prompt and answer of one sequence. Costs 13 bytes a vocabulary entry, so only sequences that need it have one."""

    def __init__(self, prompt_ids: np.ndarray, vocab_size: int) -> None:
        self.num_prompt = len(prompt_ids)
        self._ids = np.concatenate([np.asarray(prompt_ids, np.int64), np.zeros(256, np.int64)])
        self._length = self.num_prompt
        self.follower: Follower | None = None
        self._in_prompt_V = np.bincount(prompt_ids, minlength=vocab_size) > 0
        self._counts_V = np.zeros(vocab_size, np.int64)
        self._counted_to = self.num_prompt  # answer tokens before this position are in the counts

    def write(self, position: int, token_id: int) -> None:
        """The token at `position` is `token_id`; what stood there or after it is forgotten."""
        assert self.num_prompt <= position <= self._length, f"position {position} follows {self._length} known tokens"
        self._count_to(min(self._counted_to, position))
        if self.follower is not None:
            self.follower.back_to(position)
        if position == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[position] = token_id
        self._length = position + 1

    def before(self, position: int) -> np.ndarray:
        """Ids of all tokens before `position`."""
        assert position <= self._length, f"position {position} asked, but only {self._length} tokens are known"
        return self._ids[:position]

    def answer_counts(self, position: int) -> np.ndarray:
        """int64 [V]: how often each token occurs in the answer before `position`. Valid until the next call."""
        assert self.num_prompt <= position <= self._length, f"position {position}, but {self._length} tokens are known"
        self._count_to(position)
        return self._counts_V

    def seen(self, position: int) -> np.ndarray:
        """bool [V]: tokens that occur before `position`, in the prompt or in the answer."""
        if position < self.num_prompt:
            return np.bincount(self._ids[:position], minlength=len(self._counts_V)) > 0
        return self._in_prompt_V | (self.answer_counts(position) > 0)

    def _count_to(self, position: int) -> None:
        if position > self._counted_to:
            np.add.at(self._counts_V, self._ids[self._counted_to : position], 1)
        elif position < self._counted_to:
            np.subtract.at(self._counts_V, self._ids[position : self._counted_to], 1)
        self._counted_to = position
