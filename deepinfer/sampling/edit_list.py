"""The tokens whose logits one sequence edits, each once, in the shape that devices take; it grows with the answer.

A token's place holds what is so before any drafts: a bias (-inf where a bad word is in the token itself), and how often the
token occurs. V vocabulary · L places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.kernels import cpu_edit_lists

if TYPE_CHECKING:
    from deepinfer.sampling.slot_edits import SlotEdits

_IN_PROMPT, _IN_ANSWER = 1, 2
_ROOM = 256  # places to begin with, beside those that are known


class EditList:
    """Of one sequence. Costs 4 bytes a vocabulary entry."""

    def __init__(self, edits: SlotEdits, vocab_size: int) -> None:
        self.edits = edits
        self.place_V = np.full(vocab_size, -1, np.int32)
        always = edits.bad_words.always if edits.bad_words else np.empty(0, np.int64)
        fixed = np.unique(np.concatenate([edits.bias_ids, always]))
        self.length, self.has_biases = len(fixed), len(fixed) > 0
        self.ids_L = np.concatenate([fixed, np.zeros(_ROOM, np.int64)]).astype(np.int32)
        self.counts_L, self.biases_L = np.zeros(len(self.ids_L), np.int32), np.zeros(len(self.ids_L))
        self.place_V[fixed] = np.arange(self.length)
        self.biases_L[self.place_V[edits.bias_ids]] = edits.biases
        self.biases_L[self.place_V[always]] = -np.inf
        self._counted_to = edits.num_prompt
        if edits.penalised and edits.history is not None:
            edits.history.follower = self
            self._count(edits.history.before(edits.num_prompt), _IN_PROMPT)

    def follow(self, position: int) -> None:
        """The list is that of the tokens before `position`, all of which are known."""
        if not self.edits.penalised or position == self._counted_to:
            return
        assert self.edits.history is not None, "penalties without a history"
        if position < self._counted_to:
            self.back_to(position)
        else:
            self._count(self.edits.history.before(position)[self._counted_to :], _IN_ANSWER)
            self._counted_to = position

    def back_to(self, position: int) -> None:
        """Tokens from `position` on are no longer counted; they still stand in the history."""
        if position < self._counted_to and self.edits.history is not None:
            self._count(self.edits.history.before(self._counted_to)[position:], -_IN_ANSWER)
            self._counted_to = position

    def make_room(self, number: int) -> None:
        """`number` tokens more may join."""
        if self.length + number > len(self.ids_L):
            more = max(len(self.ids_L), number)
            self.ids_L = np.concatenate([self.ids_L, np.zeros(more, np.int32)])
            self.counts_L = np.concatenate([self.counts_L, np.zeros(more, np.int32)])
            self.biases_L = np.concatenate([self.biases_L, np.zeros(more)])

    def _count(self, tokens: np.ndarray, amount: int) -> None:
        self.make_room(len(tokens))
        self.length = cpu_edit_lists.count(
            self.place_V, self.ids_L, self.counts_L, self.biases_L, self.length, tokens, amount
        )
