"""Drafts made on the host: chosen by the verifier, under the grammar where a sequence has one.

S sequences that draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from deepinfer.engine.decode_state import DecodeState
from deepinfer.interfaces import Drafter, Drafts, Verified, Verifier


class DraftGrammar(Protocol):
    """What drafting asks of grammars: those of all sequences at a time, for the answer may come from another rank."""

    def under(self, slots: Sequence[int]) -> list[int]:
        """Which of `slots`, by their places there, may have a grammar. Known without asking another rank."""

    def forced_of(self, slots: Sequence[int], newest: Sequence[list[int]]) -> list[list[int] | None]:
        """Tokens that must follow the committed and these `newest` tokens of each slot; None: it has no grammar."""

    def lookahead_of(self, slots: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray | None]:
        """uint32 [words] of what may follow the committed and these tokens of each slot; None: everything may."""


def draft(
    drafter: Drafter,
    verifier: Verifier,
    state: DecodeState,
    grammar: DraftGrammar | None,
    slots_R: np.ndarray,
    verified: Verified,
    going_R: np.ndarray,
) -> Drafts:
    """For the sequences `going_R` (bool) of those that were verified, [S] of them; `state` keeps the drafts."""
    slots = slots_R[going_R]
    if not len(slots):
        return Drafts.none(state.depth)
    chooser = DraftChooser(verifier, state, grammar, slots, verified, np.flatnonzero(going_R))
    made = drafter.draft(slots, state.tokens_NL, state.num_tokens[slots], state.pad, chooser.choose)
    state.keep_drafts(slots, made)
    return made


class DraftChooser:
    """One round of drafting for `slots` [S]; `places` [S] says which sequences of `verified` they are."""

    def __init__(
        self,
        verifier: Verifier,
        state: DecodeState,
        grammar: DraftGrammar | None,
        slots: np.ndarray,
        verified: Verified,
        places: np.ndarray,
    ) -> None:
        self._verifier, self._grammar, self._slots = verifier, grammar, slots
        self._positions = state.num_tokens[slots]
        self._newest: dict[int, list[int]] = {}  # sequence under a grammar → tokens since its matcher was told
        self._forced: dict[int, list[int]] = {}
        if grammar is None:
            return
        if not (under := grammar.under(slots.tolist())):
            return  # most rounds: nothing is done for each sequence
        ends = np.cumsum(verified.counts)
        newest = [verified.token_ids[ends[r] - verified.counts[r] : ends[r]].tolist() for r in places[under]]
        for s, tokens, forced in zip(under, newest, grammar.forced_of(slots[under].tolist(), newest)):
            if forced is not None:
                self._newest[s], self._forced[s] = tokens, forced

    def choose(self, number: int, logits_SV: Any, *, proposed_S: np.ndarray | None = None) -> np.ndarray:
        """Draft `number` of every sequence, int64 [S]; see interfaces.Drafter. Text that a grammar forces is proposed first."""
        if not self._newest:
            positions = self._positions + number
            return self._verifier.choose(self._slots, positions, number, logits_SV, {}, proposed_S=proposed_S)
        assert self._grammar is not None
        under = self._slots[list(self._newest)].tolist()
        ahead = self._grammar.lookahead_of(under, list(self._newest.values()))
        masks = {s: mask for s, mask in zip(self._newest, ahead) if mask is not None}
        forced_S = np.full(len(self._slots), -1, dtype=np.int64)
        for s, forced in self._forced.items():
            if forced:
                forced_S[s] = forced[0]
        chosen_S = np.full(len(self._slots), -1, dtype=np.int64)
        drawn_S = forced_S < 0
        self._choose(number, drawn_S, logits_SV, masks, proposed_S, chosen_S)
        self._choose(number, ~drawn_S, None, masks, forced_S, chosen_S)
        for s in list(self._newest):
            token = int(chosen_S[s])
            if token < 0:  # nothing legal to propose: the sequence's drafts end here
                del self._newest[s], self._forced[s]
                continue
            self._forced[s] = self._forced[s][1:] if self._forced[s][:1] == [token] else []
            self._newest[s].append(token)
        return chosen_S

    def _choose(
        self,
        number: int,
        who_S: np.ndarray,
        logits_SV: Any,
        masks: dict[int, np.ndarray],
        proposed_S: np.ndarray | None,
        chosen_S: np.ndarray,
    ) -> None:
        """Drafts of the sequences in `who_S` (bool), written to `chosen_S`."""
        at = np.flatnonzero(who_S)
        if not len(at):
            return
        if len(at) == len(who_S):
            some_masks = masks
        else:
            some_masks = {i: masks[s] for i, s in enumerate(at.tolist()) if s in masks}
            logits_SV = None if logits_SV is None else logits_SV[at]
            proposed_S = None if proposed_S is None else proposed_S[at]
        chosen_S[at] = self._verifier.choose(
            self._slots[at], self._positions[at] + number, number, logits_SV, some_masks, proposed_S=proposed_S
        )
