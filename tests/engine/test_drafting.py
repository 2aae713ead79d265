"""What a round of drafting asks of grammars: nothing for sequences without one."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from deepinfer.engine.context_ranks import SharedGrammar
from deepinfer.engine.drafting import DraftChooser
from deepinfer.interfaces import Verified
from deepinfer.sampling.grammar.desk import GrammarDesk


class Noting:
    """Grammars of some slots, which note what they are asked and force the token after the newest."""

    def __init__(self, *slots: int) -> None:
        self.slots, self.asked = slots, []

    def under(self, slots: Sequence[int]) -> list[int]:
        return [s for s, slot in enumerate(slots) if slot in self.slots]

    def forced_of(self, slots: Sequence[int], newest: Sequence[list[int]]) -> list[list[int] | None]:
        self.asked.append(("forced", list(slots), list(newest)))
        return [[tokens[-1] + 1] for tokens in newest]

    def lookahead_of(self, slots: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray | None]:
        self.asked.append(("lookahead", list(slots), [list(one) for one in tokens]))
        return [None for _ in slots]


class Proposing:
    """A verifier that takes what is proposed."""

    def choose(self, slots, positions, number, logits_SV, masks, *, proposed_S):
        return np.full(len(slots), 99) if proposed_S is None else proposed_S


def chooser(grammar: Noting) -> DraftChooser:
    """Sequences in slots 5, 3 and 8, of which the second and third of four that were verified, and the fourth, go on."""
    verified = Verified(np.array([10, 20, 21, 30, 31, 32, 40]), np.array([1, 2, 3, 1]), None)
    state = SimpleNamespace(num_tokens=np.arange(10) * 100)
    return DraftChooser(Proposing(), state, grammar, np.array([5, 3, 8]), verified, np.array([1, 2, 3]))


def test_a_grammar_hears_the_tokens_of_its_own_sequences_alone() -> None:
    grammar = Noting(3, 4)
    round_ = chooser(grammar)
    assert grammar.asked == [("forced", [3], [[30, 31, 32]])]
    assert round_.choose(0, None).tolist() == [99, 33, 99]
    assert round_.choose(1, None).tolist() == [99, 99, 99]
    assert grammar.asked[1:] == [("lookahead", [3], [[30, 31, 32]]), ("lookahead", [3], [[30, 31, 32, 33]])]


def test_rounds_without_grammars_ask_nothing() -> None:
    grammar = Noting(1)
    assert chooser(grammar).choose(0, None).tolist() == [99, 99, 99]
    assert grammar.asked == []


@pytest.mark.parametrize("held", [[], [3], [8, 5, 2]])
def test_desks_and_shared_grammars_say_who_has_one(held: list[int]) -> None:
    desk, shared = object.__new__(GrammarDesk), SharedGrammar(SimpleNamespace(leads=False), None)
    desk._sessions = dict.fromkeys(held)
    for slot in range(10):
        shared.admit(SimpleNamespace(slot=slot, grammar=slot in held))
    expected = [s for s, slot in enumerate([5, 3, 8]) if slot in held]
    assert desk.under([5, 3, 8]) == shared.under([5, 3, 8]) == expected
