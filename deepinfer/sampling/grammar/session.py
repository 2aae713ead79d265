"""One answer under its grammar: what may follow, and what has been written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer.sampling.grammar.backend import GrammarError, allow, is_legal
from deepinfer.sampling.grammar.gate import ENDED, GRAMMAR, THINKING, Gate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.grammar.backend import Compiled, Vocabulary


class Session:
    """`params.grammar` as `compiled`. A committed token moves it on; drafts are tried and taken back."""

    def __init__(self, compiled: Compiled, params: SamplingParams, vocabulary: Vocabulary) -> None:
        assert params.grammar is not None
        self._vocabulary = vocabulary
        self._matcher = compiled.matcher()
        eos = () if params.ignore_eos else vocabulary.eos_token_ids
        self._ending = frozenset((*eos, *params.stop_token_ids))
        self._gate = Gate(params.grammar, self._ending)
        self._state = self._gate.first
        self._all_legal = vocabulary.all_legal()
        self._mask: np.ndarray | None = None  # of the next token, once it has been asked for

    def masks(self, drafts: Sequence[int]) -> list[np.ndarray]:
        """The mask of the next token, then of each token after a draft, up to the first illegal draft."""
        rows = [self._next_mask()]
        state, taken = self._state, 0
        try:
            for token in drafts:
                after = self._after(state, token) if token >= 0 and is_legal(rows[-1], token) else None
                if after is None:
                    break
                taken += state == after == GRAMMAR
                state = after
                rows.append(self._mask_of(state))
        except GrammarError:  # a limit of the library, behind a draft: the draft is not checked
            pass
        self._matcher.rollback(taken)
        return rows

    def advance(self, tokens: Sequence[int]) -> str | None:
        """Book committed tokens; a sentence where the grammar does not go on with them, or cannot go on at all."""
        for token in tokens:
            after = self._after(self._state, token)
            if after is None:
                return f"token {token} was chosen, which the grammar of this request does not allow there"
            self._state = after
        self._mask = None
        try:
            self._next_mask()
        except GrammarError as error:
            return f"the grammar of this request cannot go on: {error}"
        return None

    def lookahead(self, tokens: Sequence[int]) -> np.ndarray | None:
        """The mask after some more tokens; None where everything is legal, all clear where they are illegal."""
        state, taken = self._state, 0
        try:
            for token in tokens:
                after = self._after(state, token)
                if after is None:
                    return self._vocabulary.only(())
                taken += state == after == GRAMMAR
                state = after
            return None if self._is_free(state) else self._mask_of(state)
        except GrammarError:
            return self._vocabulary.only(())
        finally:
            self._matcher.rollback(taken)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that must follow some more tokens, as far as that is known: proposals, each of them legal."""
        state, taken = self._state, 0
        try:
            for token in tokens:
                after = self._after(state, token)
                if after is None:
                    return []
                taken += state == after == GRAMMAR
                state = after
            if state == GRAMMAR:
                return self._matcher.forced()
            return list(self._gate.rest_of_trigger(state))
        except GrammarError:
            return []
        finally:
            self._matcher.rollback(taken)

    def _after(self, state: int, token: int) -> int | None:
        """The state after a token; one that stays in GRAMMAR has moved the matcher on."""
        if state != GRAMMAR:
            return self._gate.after(state, token)
        if token in self._ending:
            legal = self._matcher.is_complete or is_legal(self._matcher.mask(), token)
            return ENDED if legal else None
        return GRAMMAR if self._matcher.accept([token]) is None else None

    def _next_mask(self) -> np.ndarray:
        if self._mask is None:
            self._mask = self._mask_of(self._state)
        return self._mask

    def _mask_of(self, state: int) -> np.ndarray:
        if state == GRAMMAR:
            mask = self._matcher.mask()
            if self._matcher.is_complete:
                allow(mask, [*self._ending])
            return mask
        only = self._gate.forced(state)
        return self._all_legal if only is None else self._vocabulary.only((only,))

    def _is_free(self, state: int) -> bool:
        return state == ENDED or (state >= THINKING and self._gate.forced(state) is None)
