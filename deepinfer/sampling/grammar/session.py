"""One answer under its grammar: what may follow, and what has been written.

The committed tokens and the drafts have a matcher each, with a budget each. What is tried in drafts cannot reach the
committed matcher, so that a limit met there cuts drafts and never changes an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from deepinfer.sampling.grammar.backend import GrammarError, allow, is_legal
from deepinfer.sampling.grammar.gate import ENDED, GRAMMAR, THINKING, Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.grammar.backend import Compiled, Matcher, Vocabulary

T = TypeVar("T")


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
        if len(drafts):
            self._by_drafts(lambda matcher: self._add_rows(matcher, drafts, rows), None)
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
        except Exception as error:  # noqa: BLE001  # a fault of the library ends this request, not the engine
            return f"the grammar of this request cannot go on: {type(error).__name__}: {error}"
        self._by_drafts(lambda matcher: self._follow(matcher, before, tokens), None)
        return None

    def lookahead(self, tokens: Sequence[int]) -> np.ndarray | None:
        """The mask after some more tokens; None where everything is legal, all clear where they are illegal."""
        nothing: np.ndarray | None = self._vocabulary.only(())
        return self._by_drafts(lambda matcher: self._ahead(matcher, tokens), nothing)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that must follow some more tokens, as far as that is known: proposals, each of them legal."""
        return self._by_drafts(lambda matcher: self._forced(matcher, tokens), [])

    def _by_drafts(self, work: Callable[[Matcher], T], otherwise: T) -> T:
        """What the drafts' matcher says; `otherwise`, for good, once it has met a limit."""
        if self._drafts is None:
            return otherwise
        try:
            return work(self._drafts)
        except Exception:  # noqa: BLE001  # a limit or a fault of the library costs drafts only
            self._drafts = None
            return otherwise

    def _ahead(self, matcher: Matcher, tokens: Sequence[int]) -> np.ndarray | None:
        state, taken = self._try(matcher, tokens)
        if state is None:
            mask: np.ndarray | None = self._vocabulary.only(())
        else:
            mask = None if self._is_free(state) else self._mask_of(matcher, state)
        matcher.rollback(taken)
        return mask

    def _forced(self, matcher: Matcher, tokens: Sequence[int]) -> list[int]:
        state, taken = self._try(matcher, tokens)
        found: list[int] = []
        if state is not None:
            found = matcher.forced() if state == GRAMMAR else list(self._gate.rest_of_trigger(state))
        matcher.rollback(taken)
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

    def _follow(self, matcher: Matcher, state: int, tokens: Sequence[int]) -> None:
        """Have the drafts' matcher go on by committed tokens."""
        for token in tokens:
            after = self._after(matcher, state, token)
            if after is None:
                raise GrammarError("it refuses what the other matcher has taken, so it has met a limit")
            state = after

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
