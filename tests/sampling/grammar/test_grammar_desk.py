"""The counter that the engine calls: compilation beside it, masks for every row, committed tokens, failures of one request."""

import importlib.util
import threading
import time

import numpy as np
import pytest
from grammar_walks import Writer, legal_ids

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.grammar.backend import GrammarError, LateBackend, is_legal
from deepinfer.sampling.grammar.crew import Crew
from deepinfer.sampling.params import ParamsError
from deepinfer.structured import Choice, JsonObject, JsonSchema, Regex

EOS = 1
NONE = np.zeros(0, dtype=np.int64)


def params(grammar, **fields) -> SamplingParams:
    return SamplingParams(grammar=grammar, **fields)


def ids(writer: Writer, text: str) -> list[int]:
    return writer.vocabulary.tokenizer.encode(text)


def drafts(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def until_ready(desk, number: int = 1) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    deadline_s = time.monotonic() + 120
    while len(found) < number and time.monotonic() < deadline_s:
        desk.wait(0.5)
        found |= dict(desk.ready())
    return found


def test_rows_stop_before_the_first_illegal_draft(writer: Writer) -> None:
    writer.attach(params(Regex("[0-9]{3}")))
    one, two, letter = ids(writer, "1")[0], ids(writer, "2")[0], ids(writer, "a")[0]
    rows = writer.desk.masks(0, drafts(one, two, letter, one))
    assert rows.shape == (3, writer.vocabulary.num_words) and rows.dtype == np.uint32
    assert is_legal(rows[0], one) and not is_legal(rows[2], letter) and not is_legal(rows[0], EOS)
    assert len(writer.desk.masks(0, drafts(letter))) == 1 and len(writer.desk.masks(0, drafts(one, -1, -1))) == 2
    assert len(writer.desk.masks(0, NONE)) == 1


def test_many_answers_at_once_are_the_same_as_one_by_one(writer: Writer) -> None:
    writer.desk._crew = Crew(4)
    text, together, alone = ids(writer, '{"a": [1, {"b": "x y"}]}'), list(range(6)), list(range(10, 16))
    for slot in together + alone:
        writer.attach(params(JsonObject()), slot=slot)
    for start in range(0, len(text), 2):
        proposals = np.full((16, 3), -1)
        proposals[:, :2] = [*text[start : start + 2], -1][:2]
        rows = writer.desk.masks_of(together, proposals[together])
        assert all((found == writer.desk.masks(slot, proposals[slot])).all() for found, slot in zip(rows, alone))
        assert writer.desk.advance_all({slot: text[start : start + 2] for slot in together}) == {}
        assert all(writer.desk.advance(slot, text[start : start + 2]) is None for slot in alone)
    wrong = {slot: [EOS] if slot % 2 else [ids(writer, "x")[0], EOS] for slot in together}
    assert {slot: number for slot, (number, _) in writer.desk.advance_all(wrong).items()} == {0: 0, 2: 0, 4: 0}


def test_masks_after_drafts_are_the_masks_without(writer: Writer) -> None:
    """Row i is what row 0 would be, had the first i drafts been committed; trying drafts leaves nothing behind."""
    text = ids(writer, '{"a": [1, {"b": "x y"}], "c": null}')
    grammar = JsonObject()
    writer.attach(params(grammar), slot=0)
    writer.attach(params(grammar), slot=1)
    for start in range(0, len(text), 3):
        proposals = text[start : start + 5]
        rows = writer.desk.masks(0, drafts(*proposals))
        assert len(rows) == len(proposals) + 1
        assert (writer.desk.masks(0, drafts(*proposals)) == rows).all()
        for number, token in enumerate(proposals[:3]):
            assert (writer.desk.masks(1, NONE)[0] == rows[number]).all()
            ahead = writer.desk.lookahead(0, proposals[: number + 1])
            assert ahead is not None and (ahead == rows[number + 1]).all()
            assert writer.desk.advance(1, [token]) is None
        assert writer.desk.advance(0, proposals[:3]) is None
    assert is_legal(writer.desk.masks(0, NONE)[0], EOS)


def test_a_complete_answer_can_only_end(writer: Writer) -> None:
    stop = ids(writer, "!")[0]
    writer.attach(params(Choice(("ab",)), stop_token_ids=(stop,)))
    assert writer.desk.advance(0, ids(writer, "ab")) is None
    rows = writer.desk.masks(0, drafts(EOS, 5))
    assert sorted(legal_ids(rows[0])) == sorted((EOS, stop))
    assert len(rows) == 3 and len(legal_ids(rows[1])) == writer.vocabulary.vocab_size  # behind the end nothing counts
    assert writer.desk.advance(0, [EOS]) is None and writer.desk.advance(0, [7]) is None


def test_thinking_ends_inside_a_block(writer: Writer) -> None:
    """Everything is legal up to the marker; what follows it in the same block is checked."""
    end = writer.vocabulary.tokenizer.token_id("</think>")
    writer.attach(params(JsonObject(starts_after=end)))
    word, brace, quote = ids(writer, "word")[0], ids(writer, "{")[0], ids(writer, '"')[0]
    rows = writer.desk.masks(0, drafts(word, end, brace, brace))
    assert len(rows) == 4
    assert all(len(legal_ids(row)) == writer.vocabulary.vocab_size for row in rows[:2])
    assert is_legal(rows[2], brace) and not is_legal(rows[2], word)
    assert is_legal(rows[3], quote) and not is_legal(rows[3], brace)
    assert writer.desk.lookahead(0, [word]) is None and writer.desk.lookahead(0, [word, end]) is not None
    assert writer.desk.advance(0, [word, end]) is None
    assert not is_legal(writer.desk.masks(0, NONE)[0], word)


def test_bound_and_trigger_tokens(writer: Writer) -> None:
    grammar = Regex("[0-9]+", trigger_token_ids=(50, 51), bound_token_id=60)
    writer.attach(params(grammar))
    rows = writer.desk.masks(0, drafts(7, 60, 50, 51))
    assert len(legal_ids(rows[1])) == writer.vocabulary.vocab_size
    assert legal_ids(rows[2]).tolist() == [50] and legal_ids(rows[3]).tolist() == [51]
    assert is_legal(rows[4], ids(writer, "1")[0]) and not is_legal(rows[4], 7)
    assert writer.desk.forced(0, [60]) == [50, 51] and writer.desk.forced(0, [7]) == []
    assert writer.desk.lookahead(0, [60]) is not None and writer.desk.lookahead(0, [7]) is None


def test_forced_text_and_lookahead_change_nothing(writer: Writer) -> None:
    schema = {"type": "object", "properties": {"longer_name": {"const": "value"}}, "required": ["longer_name"]}
    writer.attach(params(JsonSchema(schema | {"additionalProperties": False})))
    before = writer.desk.masks(0, NONE).copy()
    forced = writer.desk.forced(0, [])
    assert forced and len(writer.desk.masks(0, drafts(*forced))) == len(forced) + 1
    illegal = ids(writer, "q")
    assert not writer.desk.lookahead(0, illegal).any() and writer.desk.forced(0, illegal) == []
    assert (writer.desk.masks(0, NONE) == before).all()


def test_a_token_that_the_grammar_forbids_ends_one_request_with_the_reason(writer: Writer) -> None:
    writer.attach(params(Regex("[0-9]+")), slot=0)
    writer.attach(params(Regex("[0-9]+")), slot=1)
    assert "does not allow" in writer.desk.advance(0, ids(writer, "x"))
    assert writer.desk.advance(1, ids(writer, "12")) is None


def test_a_library_limit_ends_the_answer_with_the_reason(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.attach(params(Regex("[0-9]+")))
    session = writer.desk._sessions[0]

    def over_the_limit():
        raise GrammarError("too many lexer states")

    monkeypatch.setattr(session._matcher, "mask", over_the_limit)
    assert "cannot go on: too many lexer states" in writer.desk.advance(0, ids(writer, "1"))


def test_answers_of_one_request_have_matchers_of_their_own(writer: Writer) -> None:
    grammar = params(Regex("[0-9]{2}"), n=3)
    for slot in range(3):
        writer.attach(grammar, slot)
    assert writer.desk.advance(1, ids(writer, "1")) is None
    assert writer.desk.advance(2, ids(writer, "12")) is None
    legal = [is_legal(writer.desk.masks(slot, NONE)[0], EOS) for slot in range(3)]
    assert legal == [False, False, True]


def test_attaching_again_goes_on_where_it_was(writer: Writer) -> None:
    """A preempted request keeps its slot: its state is what was committed."""
    request = Request(request_id=10**6, prompt_ids=np.array([0]), params=params(Regex("[0-9]{3}")), seed=0)
    writer.desk.start(request.request_id, request.params)
    assert until_ready(writer.desk) == {10**6: None}
    writer.desk.attach(4, request)
    assert writer.desk.advance(4, ids(writer, "1")) is None
    before = writer.desk.masks(4, NONE)
    writer.desk.attach(4, request)
    assert (writer.desk.masks(4, NONE) == before).all() and writer.desk.has(4)
    writer.desk.detach(4)
    writer.desk.detach(4)
    assert not writer.desk.has(4)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"grammar": JsonSchema({"type": "objekt"})}, "'object'"),
        ({"grammar": JsonSchema("{")}, "no JSON"),
        ({"grammar": JsonSchema({"enum": ["x" * 300_000]})}, "262,144"),
        ({"grammar": Regex("")}, "no text"),
        ({"grammar": Choice(())}, "no list"),
        ({"grammar": Regex("a", trigger_token_ids=(99999,))}, "trigger_token_ids holds 99999"),
        ({"grammar": Regex("a", starts_after=-1)}, "starts_after"),
        ({"grammar": Regex("a", trigger="x", bound_token_id=3)}, "give one of them"),
        ({"grammar": Regex("a"), "ignore_eos": True}, "ignore_eos"),
        ({"grammar": {"regx": "a"}}, "names no kind"),
        ({"grammar": "yes|no"}, "Regex('yes|no')"),
    ],
)
def test_what_can_be_seen_at_the_door_is_refused_there(make_desk, fields: dict, says: str) -> None:
    with pytest.raises(ParamsError) as refused:
        make_desk().prepare(SamplingParams(**fields))
    assert says in str(refused.value)


class Slow:
    """A backend whose `stuck` grammar is not done before it is told."""

    name = "llguidance"

    def __init__(self, inner) -> None:
        self._inner = inner
        self.go_on = threading.Event()
        self.compiled: list = []

    def compile(self, grammar):
        self.compiled.append(grammar)
        if grammar == Regex("stuck"):
            self.go_on.wait(20)
        return self._inner.compile(grammar)


def test_a_slow_compilation_loses_its_request_and_no_other(make_desk, llguidance) -> None:
    slow = Slow(llguidance)
    desk = make_desk(slow, timeout_s=0.2)
    desk.start(1, params(Regex("stuck")))
    desk.start(2, params(Regex("quick")))
    found = until_ready(desk, 2)
    assert found[2] is None and "within 0.2 s (grammar.compile_timeout_s)" in found[1]
    slow.go_on.set()


def test_a_request_that_is_cancelled_while_compiling_is_not_told_of(make_desk, llguidance) -> None:
    slow = Slow(llguidance)
    desk = make_desk(slow)
    desk.start(1, params(Regex("stuck")))
    desk.start(2, params(Regex("stuck")))
    desk.cancel(1)
    slow.go_on.set()
    assert until_ready(desk) == {2: None}
    desk.cancel(2)
    assert not desk.ready() and not desk._waiting
    desk.close()


def test_equal_contents_are_compiled_once_and_the_oldest_is_forgotten(make_desk, llguidance) -> None:
    slow = Slow(llguidance)
    desk = make_desk(slow, max_cached=2)
    for number, pattern in enumerate(["a", "a", "b", "a", "c", "b", "a"]):
        desk.start(number, params(Regex(pattern, starts_after=5 if number == 1 else None)))
        assert until_ready(desk) == {number: None}
    assert [grammar.pattern for grammar in slow.compiled] == ["a", "b", "c", "b", "a"]
    by_bytes = make_desk(llguidance, max_cached_bytes=1)
    by_bytes.start(1, params(Regex("a")))
    assert until_ready(by_bytes) == {1: None} and not by_bytes._workshop._cache


def test_broken_grammars_end_only_their_requests(make_desk) -> None:
    """G02, G03: the reason is told, and whoever comes next is served."""
    desk = make_desk()
    for number, grammar in enumerate([Regex("["), Regex(r"\q"), Regex("ok")]):
        desk.start(number, params(grammar))
    found = until_ready(desk, 3)
    assert "unclosed" in found[0] and "escape" in found[1] and found[2] is None


def test_a_late_backend_is_made_once_by_the_first_compilation(make_desk, llguidance) -> None:
    made: list = []

    def make():
        made.append(True)
        return llguidance

    desk = make_desk(LateBackend("llguidance", make))
    desk.prepare(params(Regex("a")))
    assert not made
    for number in range(4):
        desk.start(number, params(Regex("a" * (number + 1))))
    assert until_ready(desk, 4) == dict.fromkeys(range(4)) and made == [True]


def test_a_backend_that_is_not_installed_is_the_reason(make_desk, vocabulary) -> None:
    if importlib.util.find_spec("xgrammar") is not None:
        pytest.skip("xgrammar is installed")
    from deepinfer.sampling.grammar.xgrammar import Xgrammar

    desk = make_desk(LateBackend("xgrammar", lambda: Xgrammar(vocabulary)))
    desk.start(1, params(Regex("a")))
    assert "pip install -e '.[xgrammar]'" in (until_ready(desk)[1] or "")
