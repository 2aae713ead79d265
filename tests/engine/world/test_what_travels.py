"""What a caller gives that no message carries: refused in a sentence at once, or made plain; nobody waits for an answer that
cannot come, and the ranks go on."""

from __future__ import annotations

import enum
import os

import pytest
from toy_executor import ToyExecutor, expected_answer, toy_limits
from toy_world import ToyRanks

from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import RequestRefused
from deepinfer.engine.seeds import sequence_key
from deepinfer.engine.world import messages
from deepinfer.engine.world.rank_loop import RankLoop
from deepinfer.engine.world.world import WorldLost
from deepinfer.interfaces import SamplingParams
from deepinfer.serving.experts import Experts


class Few(enum.IntEnum):
    TWO = 2
    THREE = 3


class Text(str):
    __slots__ = ()


class Share(float):
    __slots__ = ()


@pytest.fixture
def fleet():
    fleet = ToyRanks(2, toy_limits(), in_step=False).fleet()
    yield fleet
    fleet.close()


def answer(fleet, **more) -> list[int]:
    """Of a request, after everything else: ranks that still answer."""
    params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    (request_id,) = fleet.submit([5, 6], params, **more)
    found, ended = [], False
    for _ in range(200):
        for event in fleet.step():
            assert event.request_id == request_id and event.error is None
            found, ended = found + event.token_ids, ended or event.finish_reason is not None
        if ended:
            break
    assert found == expected_answer([5, 6], sequence_key(1, 0), params, fleet.limits)
    return found


@pytest.mark.parametrize("priority", [1.5, "high", None, True, 2**63])
def test_a_priority_that_is_no_whole_number_is_refused_in_the_same_words(fleet, priority):
    engine = Engine(ToyExecutor(toy_limits()), toy_limits())
    told = []
    for each in (engine, fleet):
        with pytest.raises(RequestRefused, match=r"priority=.* is not a whole number") as error:
            each.submit([5, 6], SamplingParams(), priority=priority)
        told.append(str(error.value))
        assert each.stats().refused == 1
    assert told[0] == told[1]
    assert answer(fleet, priority=Few.TWO)


@pytest.mark.parametrize("salt", [b"a", 7, "\ud800"])
def test_a_salt_that_is_no_text_is_refused_by_both(fleet, salt):
    for each in (Engine(ToyExecutor(toy_limits()), toy_limits()), fleet):
        with pytest.raises(RequestRefused, match=r"cache_salt=.* is no text"):
            each.submit([5, 6], SamplingParams(), cache_salt=salt)
    assert answer(fleet, cache_salt=Text("a"))


def test_numbers_and_texts_of_other_classes_travel_as_what_they_are(fleet):
    sent, send = [], fleet.world.send
    fleet.world.send = lambda rank, message: (send(rank, message), sent.append(message))
    params = SamplingParams(
        max_tokens=Few.THREE,
        top_k=Few.TWO,
        top_p=Share(0.5),
        stop=(Text("a"),),
        stop_token_ids=(Few.TWO,),
        logit_bias={Few.THREE: Share(1.0)},
        seed=Few.TWO,
    )
    fleet.submit([5, 6], params)
    (found,) = [message.params for message in sent if isinstance(message, messages.Submit)]
    values = [
        found.max_tokens,
        found.top_k,
        found.top_p,
        *found.stop,
        *found.stop_token_ids,
        *found.logit_bias.popitem(),
    ]
    assert values == [3, 2, 0.5, "a", 2, 3, 1.0]
    assert [type(value) for value in values] == [int, int, float, str, int, int, float]


@pytest.mark.parametrize("cannot", [object(), 2**70, "\ud800", 1.5])
def test_what_no_rank_could_read_ends_its_own_request_alone(fleet, monkeypatch, cannot):
    with monkeypatch.context() as patch:
        patch.setattr("deepinfer.engine.world.fleet.checked_place", lambda priority, salt: (cannot, salt))
        with pytest.raises(RequestRefused, match="no message"):
            fleet.submit([5, 6], SamplingParams())
    assert answer(fleet)


@pytest.mark.parametrize("path", [b"bytes", "\ud800"])
def test_a_question_that_no_rank_could_read_ends_with_the_reason(fleet, path):
    with pytest.raises(ValueError, match="no message"):
        fleet.ask_experts(path=path)
    assert answer(fleet)


@pytest.mark.parametrize("error", [ValueError("embedded null byte"), OSError(28, "No space left on device")])
def test_a_file_that_cannot_be_written_is_an_answer(error):
    class Line:
        def __init__(self) -> None:
            self.sent: list[messages.Message] = []

        def send(self, message: messages.Message) -> None:
            self.sent.append(message)

    class Balancer:
        def save(self, path: str) -> None:
            raise error

    class InStep:
        def heard(self, wake: int) -> None: ...

        def ask(self, word: int, answer) -> None:
            answer()

    line = Line()
    engine = Engine(ToyExecutor(toy_limits()), toy_limits())
    loop = RankLoop(engine, line, None, InStep(), Balancer())
    loop._take(messages.ExpertsAsk(number=3, path="p", wake=1))
    why = getattr(error, "strerror", None) or str(error)
    assert line.sent == [messages.Experts(number=3, error=f"p: {why}")]


class Asked:
    """Remembers what an engine was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def ask_experts(self, path: str) -> None:
        self.paths.append(path)

    def __enter__(self) -> None: ...

    def __exit__(self, *why: object) -> None: ...


@pytest.mark.parametrize("path", ["a\0b", "\ud800", b"\xff", "", b"", 5, None])
def test_what_names_no_file_is_refused(path):
    asked = Asked()
    with pytest.raises(ValueError, match="names no file"):
        Experts(asked, asked).save(path)
    assert not asked.paths


def test_a_path_in_bytes_is_one():
    asked = Asked()
    Experts(asked, asked).save(b"name")
    assert asked.paths == [os.path.abspath("name")]


def test_a_fork_of_the_process_is_refused_and_leaves_the_ranks_alone(fleet, monkeypatch):
    (request_id,) = fleet.submit([5, 6], SamplingParams(max_tokens=50, seed=1, ignore_eos=True))
    here, sent = os.getpid(), []
    fleet.finish(fleet.submit([5], SamplingParams())[0])
    with monkeypatch.context() as patch:
        patch.setattr(fleet.world, "send", lambda rank, message: sent.append(message))
        patch.setattr(fleet.world, "close", lambda: sent.append("close"))
        patch.setattr("deepinfer.engine.world.fleet.os.getpid", lambda: here + 1)
        assert not fleet.abort(request_id)
        with pytest.raises(RequestRefused, match=f"this LLM is of process {here}, of which this one is a fork"):
            fleet.submit([5], SamplingParams())
        with pytest.raises(WorldLost, match="is a fork"):
            fleet.ask_experts()
        last = fleet.step()[-1]
        assert (last.request_id, last.finish_reason) == (request_id, "error") and "is a fork" in last.error
        fleet.close()
    assert sent == []
    fleet._closed = False  # what a real fork sets, it sets for itself
