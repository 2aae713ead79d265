"""Where in an answer its grammar begins, as a number that a draft cannot spoil: states are values, nothing is undone.

THINKING → (starts_after) → FREE → (trigger) → GRAMMAR → ENDED. In FREE the number counts how much of the trigger the newest
tokens are; FORCED + j says that token j of the trigger is the only legal one, after the bound token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.structured import Grammar

ENDED, GRAMMAR, THINKING, FREE = -3, -2, -1, 0
FORCED = 1 << 30


class Gate:
    """The way to the grammar for one request. `ending` are the tokens that end its answer."""

    def __init__(self, grammar: Grammar, ending: frozenset[int]) -> None:
        self._after = grammar.starts_after
        self._trigger = tuple(grammar.trigger_token_ids)
        self._bound = grammar.bound_token_id
        self._ending = ending
        self._fallback = _fallback(self._trigger)
        self._open = GRAMMAR if not self._trigger and self._bound is None else FREE
        self.first = THINKING if self._after is not None else self._open

    def forced(self, state: int) -> int | None:
        """The only legal token in this state, where it is one of the trigger's."""
        return self._trigger[state - FORCED] if state >= FORCED else None

    def rest_of_trigger(self, state: int) -> tuple[int, ...]:
        return self._trigger[state - FORCED :] if state >= FORCED else ()

    def after(self, state: int, token: int) -> int | None:
        """The state after a token outside the grammar; None where it is illegal."""
        if state >= FORCED:
            if token != self._trigger[state - FORCED]:
                return None
            return GRAMMAR if state - FORCED + 1 == len(self._trigger) else state + 1
        if token in self._ending or state == ENDED:
            return ENDED
        if state == THINKING:
            return self._open if token == self._after else THINKING
        if token == self._bound:
            return FORCED if self._trigger else GRAMMAR
        return self._after_free(state, token)

    def _after_free(self, matched: int, token: int) -> int:
        """How much of the trigger the newest tokens are, once `token` follows (Knuth, Morris, Pratt)."""
        if not self._trigger:
            return FREE
        while matched and self._trigger[matched] != token:
            matched = self._fallback[matched]
        matched += self._trigger[matched] == token
        return GRAMMAR if matched == len(self._trigger) else matched


def _fallback(trigger: tuple[int, ...]) -> list[int]:
    """Entry m: the longest proper beginning of the trigger that its first m tokens end with."""
    table = [0, 0]
    for token in trigger[1:]:
        matched = table[-1]
        while matched and trigger[matched] != token:
            matched = table[matched]
        table.append(matched + (trigger[matched] == token))
    return table
