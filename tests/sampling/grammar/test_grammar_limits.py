"""A limit or a fault of a library ends one answer with the reason, at the same token with drafts and without; no other."""

import threading
import time

import numpy as np
import pytest
from grammar_walks import Writer

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.grammar import llguidance as library
from deepinfer.sampling.grammar import workshop
from deepinfer.sampling.grammar.backend import GrammarError
from deepinfer.sampling.grammar.desk import GrammarDesk
from deepinfer.sampling.grammar.session import Session
from deepinfer.structured import Regex

GROWING = Regex("(?s:.*)(a|b)(?s:.{30})(c|d)(?s:.{30})e")  # its states double with the letters it has seen
NONE = np.zeros(0, dtype=np.int64)


@pytest.fixture
def few_states(vocabulary, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(library, "MAX_LEXER_STATES", 4000)
    return Writer(GrammarDesk(library.Llguidance(vocabulary), vocabulary, compile_timeout_s=20), vocabulary)


def until_it_ends(writer: Writer, seed: int, drafts: int, slot: int) -> tuple[list[int], str]:
    """The tokens of an answer from noise, and why its grammar could not go on."""
    writer.attach(SamplingParams(grammar=GROWING), slot)
    tokens: list[int] = []
    while len(tokens) < 2000:
        proposals = writer._proposals(tokens, seed, drafts, {1: -100.0}, slot)
        if drafts:
            writer.desk.forced(slot, proposals[:1])
        rows = writer.desk.masks(slot, np.array(proposals, dtype=np.int64))
        new: list[int] = []
        for number, mask in enumerate(rows):
            new.append(writer._draw(mask, seed, len(tokens) + number, {1: -100.0}))
            if number == len(proposals) or new[-1] != proposals[number]:
                break
        for number in range(len(new)):  # one by one, to know which of them ends it
            if (error := writer.desk.advance(slot, new[number : number + 1])) is not None:
                return [*tokens, *new[: number + 1]], error
        tokens += new
    raise AssertionError("the limit was never met")


def test_each_answer_has_a_budget_of_its_own(few_states: Writer) -> None:
    """Equal answers of a grammar that stays compiled meet the limit at the same token, however many there were before."""
    first = until_it_ends(few_states, 3, 0, slot=0)
    assert "cannot go on" in first[1] and "too many states: 4000" in first[1] and len(first[0]) > 3
    assert until_it_ends(few_states, 3, 0, slot=1) == first
    assert until_it_ends(few_states, 3, 0, slot=0) == first


def test_a_limit_that_drafts_meet_changes_no_answer(few_states: Writer) -> None:
    for seed in range(3):
        assert until_it_ends(few_states, seed, 4, slot=1) == until_it_ends(few_states, seed, 0, slot=0)


def test_drafts_whose_matcher_is_spent_are_no_longer_checked(few_states: Writer) -> None:
    few_states.attach(SamplingParams(grammar=Regex("[0-9]{8}")))
    session: Session = few_states.desk._sessions[0]
    digits = few_states.vocabulary.tokenizer.encode("1234")
    assert len(few_states.desk.masks(0, np.array(digits))) == len(digits) + 1

    def limit():
        raise GrammarError("too many states")

    session._drafts.mask = limit
    assert len(few_states.desk.masks(0, np.array(digits))) == 1 and session._drafts is None
    assert not few_states.desk.lookahead(0, digits[:1]).any() and few_states.desk.forced(0, []) == []
    assert few_states.desk.advance(0, digits) is None and few_states.desk.masks(0, NONE)[0].any()


def test_without_drafting_no_second_matcher_is_kept(vocabulary, llguidance) -> None:
    writer = Writer(GrammarDesk(llguidance, vocabulary, compile_timeout_s=20, drafting=False), vocabulary)
    writer.attach(SamplingParams(grammar=Regex("[0-9]{3}")))
    assert writer.desk._sessions[0]._drafts is None and len(writer.desk.masks(0, np.array([50]))) == 1


@pytest.mark.parametrize("fault", [GrammarError("a limit"), RuntimeError("a fault"), IndexError("another")])
def test_whatever_a_matcher_raises_ends_its_answer_alone(writer: Writer, fault: Exception) -> None:
    writer.attach(SamplingParams(grammar=Regex("[0-9]+")), 0)
    writer.attach(SamplingParams(grammar=Regex("[0-9]+")), 1)
    digits = writer.vocabulary.tokenizer.encode("7")

    def broken(*_):
        raise fault

    writer.desk._sessions[0]._matcher.accept = broken
    assert str(fault) in writer.desk.advance(0, digits)
    assert writer.desk.advance(1, digits) is None


class Faulty:
    """A backend that fails in ways that none should, and gets stuck."""

    name = "llguidance"

    def __init__(self, inner) -> None:
        self._inner = inner
        self.go_on = threading.Event()

    def compile(self, grammar):
        if grammar.pattern.startswith("index"):
            raise IndexError("tuple index out of range")
        if grammar.pattern.startswith("exit"):
            raise SystemExit(1)
        if grammar.pattern.startswith("stuck"):
            self.go_on.wait(20)
        return self._inner.compile(grammar)


def told(desk: GrammarDesk, *ids: int) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    deadline_s = time.monotonic() + 120
    while set(ids) - set(found) and time.monotonic() < deadline_s:
        desk.wait(0.05)
        found |= dict(desk.ready())
    return found


def test_a_compiler_survives_any_fault(make_desk, llguidance) -> None:
    desk = make_desk(Faulty(llguidance))
    for number, pattern in enumerate(["index", "exit", "index2", "exit2", "fine"]):
        desk.start(number, SamplingParams(grammar=Regex(pattern)))
    found = told(desk, *range(5))
    assert "IndexError: tuple index" in found[0] and "SystemExit" in found[1] and found[4] is None
    desk.close()


def test_who_waits_for_a_compiler_loses_no_time(make_desk, llguidance) -> None:
    """Two that get stuck end after their time; whoever waits behind them is served by those who take their place."""
    faulty = Faulty(llguidance)
    desk = make_desk(faulty, timeout_s=0.3)
    for number, pattern in enumerate(["stuck", "stuck2", "fine"]):
        desk.start(number, SamplingParams(grammar=Regex(pattern)))
    found = told(desk, 0, 1, 2)
    assert "within 0.3 s" in found[0] and "within 0.3 s" in found[1] and found[2] is None
    faulty.go_on.set()
    desk.start(3, SamplingParams(grammar=Regex("also fine")))
    assert told(desk, 3) == {3: None}
    desk.close()


def test_when_no_compiler_is_left_it_is_said(make_desk, llguidance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "MAX_LATE_THREADS", 0)
    faulty = Faulty(llguidance)
    desk = make_desk(faulty, timeout_s=0.2)
    for number, pattern in enumerate(["stuck", "stuck2", "fine"]):
        desk.start(number, SamplingParams(grammar=Regex(pattern)))
    found = told(desk, 0, 1, 2)
    assert "no compiler was free within 0.2 s" in found[2] and "2 grammars" in found[2]
    faulty.go_on.set()
    desk.start(4, SamplingParams(grammar=Regex("fine again")))
    assert told(desk, 4) == {4: None}
    desk.close()


def test_a_schema_that_changes_after_it_was_handed_in_changes_nothing(make_desk, llguidance, vocabulary) -> None:
    from deepinfer.structured import JsonSchema

    schema = {"type": "integer"}
    desk = make_desk()
    desk.start(1, SamplingParams(grammar=JsonSchema(schema)))
    schema["type"] = "objekt"
    assert told(desk, 1) == {1: None}
