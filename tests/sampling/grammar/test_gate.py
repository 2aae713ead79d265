"""Where the grammar begins: after a token, after a trigger, after a bound token; told by states, undone by nothing."""

import random

import pytest

from deepinfer.sampling.grammar.gate import ENDED, FREE, GRAMMAR, THINKING, Gate
from deepinfer.structured import Regex

EOS = 1


def gate(**fields) -> Gate:
    return Gate(Regex("x", **fields), frozenset({EOS}))


def walk(one: Gate, tokens: list[int]) -> list[int | None]:
    states: list[int | None] = [one.first]
    for token in tokens:
        states.append(one.after(states[-1], token))
    return states


def test_without_a_gate_the_grammar_is_the_whole_answer() -> None:
    assert gate().first == GRAMMAR


def test_thinking_is_free_and_a_trigger_in_it_is_text() -> None:
    """D04: a tool marker while thinking starts nothing."""
    one = gate(starts_after=9, trigger_token_ids=(5, 6))
    assert walk(one, [5, 6, 5, 9, 5, 6]) == [THINKING] * 4 + [FREE, 1, GRAMMAR]
    assert walk(gate(starts_after=9), [3, 9]) == [THINKING, THINKING, GRAMMAR]
    assert walk(one, [3, EOS, 3]) == [THINKING, THINKING, ENDED, ENDED]


@pytest.mark.parametrize("seed", range(20))
def test_a_trigger_is_found_wherever_it_begins(seed: int) -> None:
    rng = random.Random(seed)
    trigger = tuple(rng.choice((2, 3)) for _ in range(rng.randrange(1, 6)))
    text = [rng.choice((2, 3)) for _ in range(60)]
    one = gate(trigger_token_ids=trigger)
    state, found = one.first, None
    for number, token in enumerate(text):
        state = one.after(state, token)
        if state == GRAMMAR:
            found = number + 1
            break
    ends = [end for end in range(len(trigger), len(text) + 1) if tuple(text[end - len(trigger) : end]) == trigger]
    assert found == (ends[0] if ends else None)


def test_a_bound_token_forces_the_trigger_token_by_token() -> None:
    one = gate(trigger_token_ids=(5, 6), bound_token_id=8)
    states = walk(one, [3, 8, 5, 6])
    assert states[-1] == GRAMMAR and one.forced(states[2]) == 5 and one.forced(states[3]) == 6
    assert one.after(states[2], 3) is None and one.after(states[2], EOS) is None
    assert one.rest_of_trigger(states[2]) == (5, 6) and one.forced(states[0]) is None
    assert walk(gate(bound_token_id=8), [3, 8]) == [FREE, FREE, GRAMMAR]
