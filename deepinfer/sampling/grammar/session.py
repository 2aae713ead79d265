"""One answer under its grammar: what may follow, and what has been written.

The committed tokens and the drafts have a matcher each, with a budget each. What is tried in drafts cannot reach the
committed matcher, so that a limit met there cuts drafts and never changes an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer.sampling.grammar.backend import GrammarError, allow, is_legal
from deepinfer.sampling.grammar.gate import ENDED, GRAMMAR, THINKING, Gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.grammar.backend import Compiled, Matcher, Vocabulary


class Session:
    """`params.grammar` as `compiled`. Made by a compiler's thread, with the mask of the first token.

    Only the constructor raises. `drafting` False saves the matcher of the drafts: none is then checked or proposed.
    """

    def __init__(
        self, compiled: Compiled, params: SamplingParams, vocabulary: Vocabulary, *, drafting: bool = True
    ) -> None:
        assert params.grammar is not None
        self._vocabulary = vocabulary
        eos = () if params.ignore_eos else vocabulary.eos_token_ids
        self._ending = frozenset((*eos, *params.stop_token_ids))
        self._gate = Gate(params.grammar, self._ending)
        self._state = self._gate.first
        self._all_legal = vocabulary.all_legal()
        self._matcher = compiled.matcher()
        self._drafts: Matcher | None = compiled.matcher() if drafting else None
        self._mask = self._mask_of(self._matcher, self._state)  # of the next token
        if self._state != GRAMMAR:  # a limit that is met at once is told now, not behind the trigger
            self._mask_of(self._matcher, GRAMMAR)

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray]:
        """The mask of the next token, then of each token after a draft, up to the first that is illegal or not checked."""
        rows = [self._mask]
        if len(drafts) and self._drafts is not None:
            try:
                self._add_rows(self._drafts, drafts, rows)
            except Exception:  # a limit or a fault of the library
                self._drafts = None
        return rows

    def advance(self, tokens: Sequence[int]) -> str | None:
        """Book committed tokens; a sentence where the grammar does not go on with them, or cannot go on at all."""
        before = self._state
        try:
            for token in tokens:
                if self._state == GRAMMAR and not is_legal(self._mask, token):
                    return f"token {token} was chosen, which the grammar of this request does not allow there"
                after = self._after(self._matcher, self._state, token)
                if after is None:
                    return f"token {token} was chosen, which the grammar of this request does not allow there"
                self._state = after
                # the same work with drafts and without, so that a limit is met at the same token
                self._mask = self._mask_of(self._matcher, after)
        except GrammarError as error:
            return f"the grammar of this request cannot go on: {error}"
        except Exception as error:  # a fault of the library ends this request, not the engine
            return f"the grammar of this request cannot go on: {type(error).__name__}: {error}"
        self._follow(before, tokens)
        return None

    def lookahead(self, tokens: Sequence[int]) -> np.ndarray | None:
        """The mask after some more tokens; None where everything is legal, all clear where they are illegal."""
        nothing = self._vocabulary.only(())
        if self._drafts is None:
            return nothing
        try:
            state, taken = self._try(self._drafts, tokens)
            if state is not None and self._is_free(state):
                mask = None
            else:
                mask = nothing if state is None else self._mask_of(self._drafts, state)
            self._drafts.rollback(taken)
        except Exception:  # a limit or a fault of the library
            self._drafts = None
            return nothing
        return mask

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that must follow some more tokens, as far as that is known: proposals, each of them legal."""
        if self._drafts is None:
            return []
        try:
            state, taken = self._try(self._drafts, tokens)
            if state is None:
                found: list[int] = []
            else:
                found = self._drafts.forced() if state == GRAMMAR else list(self._gate.rest_of_trigger(state))
            self._drafts.rollback(taken)
        except Exception:  # a limit or a fault of the library
            self._drafts = None
            return []
        return found

    def _add_rows(self, matcher: Matcher, drafts: Sequence[int], rows: list[np.ndarray]) -> None:
        state, taken = self._state, 0
        for token in drafts:
            after = self._after(matcher, state, token) if token >= 0 and is_legal(rows[-1], token) else None
            if after is None:
                break
            taken += state == after == GRAMMAR
            state = after
            rows.append(self._mask_of(matcher, state))
        matcher.rollback(taken)

    def _try(self, matcher: Matcher, tokens: Sequence[int]) -> tuple[int | None, int]:
        """The state after some more tokens, None where one is illegal, and by how many the matcher has moved on."""
        state, taken = self._state, 0
        for token in tokens:
            after = self._after(matcher, state, token)
            if after is None:
                return None, taken
            taken += state == after == GRAMMAR
            state = after
        return state, taken

    def _follow(self, state: int, tokens: Sequence[int]) -> None:
        """Have the drafts' matcher go on by committed tokens."""
        if self._drafts is None:
            return
        try:
            for token in tokens:
                after = self._after(self._drafts, state, token)
                if after is None:  # legal for the other matcher, so this one has met a limit
                    self._drafts = None
                    return
                state = after
        except Exception:  # a limit or a fault of the library
            self._drafts = None

    def _after(self, matcher: Matcher, state: int, token: int) -> int | None:
        """The state after a token; one that stays in GRAMMAR has moved the matcher on. Raises GrammarError."""
        if state != GRAMMAR:
            return self._gate.after(state, token)
        if token in self._ending:
            return ENDED if matcher.is_complete or is_legal(matcher.mask(), token) else None
        return GRAMMAR if matcher.accept([token]) is None else None

    def _mask_of(self, matcher: Matcher, state: int) -> np.ndarray:
        if state == GRAMMAR:
            mask = matcher.mask()
            if matcher.is_complete:
                allow(mask, [*self._ending])
            return mask
        only = self._gate.forced(state)
        return self._all_legal if only is None else self._vocabulary.only((only,))

    def _is_free(self, state: int) -> bool:
        return state == ENDED or (state >= THINKING and self._gate.forced(state) is None)
