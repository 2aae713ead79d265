"""Drafts made on the host: chosen by the verifier, under the grammar where a sequence has one.

S sequences that draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.engine.decode_state import DecodeState
from deepinfer.interfaces import Drafter, Drafts, Verified, Verifier

if TYPE_CHECKING:
    from deepinfer.sampling.grammar.desk import GrammarDesk


def draft(
    drafter: Drafter,
    verifier: Verifier,
    state: DecodeState,
    grammar: GrammarDesk | None,
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
        grammar: GrammarDesk | None,
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
        firsts = np.cumsum(verified.counts) - verified.counts
        for s, (slot, r) in enumerate(zip(slots.tolist(), places.tolist())):
            if grammar.has(slot):
                self._newest[s] = verified.token_ids[firsts[r] : firsts[r] + verified.counts[r]].tolist()
                self._forced[s] = grammar.forced(slot, self._newest[s])

    def choose(self, number: int, logits_SV: Any, *, proposed_S: np.ndarray | None = None) -> np.ndarray:
        """Draft `number` of every sequence, int64 [S]; see interfaces.Drafter. Text that a grammar forces is proposed first."""
        if not self._newest:
            positions = self._positions + number
            return self._verifier.choose(self._slots, positions, number, logits_SV, {}, proposed_S=proposed_S)
        masks: dict[int, np.ndarray] = {}
        for s, newest in self._newest.items():
            assert self._grammar is not None
            mask = self._grammar.lookahead(int(self._slots[s]), newest)
            if mask is not None:
                masks[s] = mask
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
