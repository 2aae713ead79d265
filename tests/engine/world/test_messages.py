"""Messages survive their bytes, and bytes that are none are refused by a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.config.errors import Problem
from deepinfer.engine.events import TokenEvent
from deepinfer.engine.world.messages import (
    Beat,
    Close,
    Events,
    Fault,
    Hello,
    MalformedMessage,
    Submit,
    packed,
    read_at_driver,
    read_at_rank,
)
from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.structured import Choice, Regex


def test_a_request_arrives_as_it_was_sent():
    params = SamplingParams(
        stop="x", logit_bias={3: -1.5}, seed=2**63 - 1, grammar=Choice(choices=("a", "b")), bad_words=("no",), n=2
    )
    sent = Submit(request_ids=[7, 8], prompt_ids=np.array([0, 2**40]), params=params, cache_salt="s", wake=3)
    got = read_at_rank(packed(sent))
    assert got.prompt_ids.dtype == np.int64
    assert got.prompt_ids.tolist() == [0, 2**40]
    assert (got.params, got.request_ids, got.cache_salt, got.wake) == (params, [7, 8], "s", 3)
    grammar = SamplingParams(grammar=Regex(pattern="é+", trigger="t"))
    again = Submit(request_ids=[1], prompt_ids=np.array([1]), params=grammar, wake=1)
    assert read_at_rank(packed(again)).params == grammar


def test_log_probabilities_arrive_bit_for_bit():
    row = TokenLogprobs(np.array([5, 6]), np.array([-0.1, np.float32(-np.inf)], np.float32), 2)
    event = TokenEvent(9, [5], logprobs=[row], prompt_logprobs=[row], finish_reason="stop", num_checked=3)
    got = read_at_driver(packed(Events(events=[event], admitted=[9]))).events[0]
    for found in (got.logprobs[0], got.prompt_logprobs[0]):
        assert found.logprobs.tobytes() == row.logprobs.tobytes()
        assert (found.token_ids.tolist(), found.rank) == ([5, 6], 2)
    assert (got.request_id, got.token_ids, got.finish_reason, got.num_checked) == (9, [5], "stop", 3)
    found.logprobs[0] = 0  # whoever gets an array owns it


def test_problems_of_a_rank_arrive_as_problems():
    problem = Problem(asked="model.path=/x", found="not there", fix="model.path=DIR")
    assert read_at_driver(packed(Fault(why="it cannot start", problems=[problem]))).problems == [problem]


@pytest.mark.parametrize("read", [read_at_rank, read_at_driver])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\xc1",
        b"\x93\x01\x02\x03",
        b"\x81\xa4type\xa6Nobody",
        b"\x92" * 5000,
        packed(Submit(request_ids=[1], prompt_ids=np.array([1]), params=SamplingParams(), wake=1))[:-1],
        packed(Beat()).replace(b"doing", b"going") + b"x",
    ],
)
def test_bytes_that_are_no_message_are_refused(read, data):
    with pytest.raises(MalformedMessage, match=f"{len(data):,} bytes that are no message of this version"):
        read(data)


def test_nobody_takes_the_messages_of_the_other_side():
    with pytest.raises(MalformedMessage):
        read_at_rank(packed(Hello(rank=0, host="h", pid=1)))
    with pytest.raises(MalformedMessage):
        read_at_driver(packed(Close(wake=1)))


@pytest.mark.parametrize("array", [["<O8", [1], b"x" * 8], ["<i8", [2], b"x" * 8], ["<i8", "no", b""], 5])
def test_arrays_that_do_not_fit_their_bytes_are_refused(array):
    import msgspec

    whole = msgspec.msgpack.decode(
        packed(Submit(request_ids=[1], prompt_ids=np.array([1]), params=SamplingParams(), wake=1))
    )
    with pytest.raises(MalformedMessage):
        read_at_rank(msgspec.msgpack.encode({**whole, "prompt_ids": array}))
