"""What is told of an answer that is computed again: only what is new, and an end where it contradicts what was told."""

from __future__ import annotations

import random

import numpy as np

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.world.asked import Told
from deepinfer.engine.world.silence import Silence
from deepinfer.interfaces import TokenLogprobs


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(np.array([token]), np.zeros(1, np.float32), 1)


def told_of(told: Told, events) -> list[TokenEvent]:
    return [news for event in events if (news := told.news(event)) is not None]


def cut(rng: random.Random, tokens: list[int], prompt: list[int], *, ends: bool) -> list[TokenEvent]:
    """The events of an answer, its tokens in parts of any length."""
    events, left, rows = [], list(tokens), list(prompt)
    while rows:
        number = rng.randrange(1, len(rows) + 1)
        events.append(TokenEvent(1, [], prompt_logprobs=[entry(token) for token in rows[:number]]))
        rows = rows[number:]
    while left:
        number = min(len(left), rng.randrange(1, 5))
        part, left = left[:number], left[number:]
        events.append(TokenEvent(1, part, logprobs=[entry(token) for token in part], num_checked=number))
    events[0].cached_tokens = 3
    if ends:
        events[-1].finish_reason = "length"
    return events


def test_a_repeated_answer_is_told_once_however_it_is_cut():
    for seed in range(200):
        rng = random.Random(seed)
        tokens, prompt = [rng.randrange(9) for _ in range(rng.randrange(1, 20))], list(range(rng.randrange(5)))
        told, heard = Told(), []
        for _ in range(rng.randrange(3)):
            events = cut(rng, tokens, prompt, ends=True)
            heard += told_of(told, events[: rng.randrange(len(events))])
            told.repeat()
        heard += told_of(told, cut(rng, tokens, prompt, ends=True))
        assert [token for event in heard for token in event.token_ids] == tokens
        assert [int(row.token_ids[0]) for event in heard for row in event.logprobs or ()] == tokens
        assert [int(row.token_ids[0]) for event in heard for row in event.prompt_logprobs or ()] == prompt
        assert [event.finish_reason for event in heard if event.finish_reason] == ["length"]
        assert [event.cached_tokens for event in heard if event.cached_tokens is not None] == [3]


def test_an_answer_that_comes_out_otherwise_ends():
    told = Told()
    told_of(told, [TokenEvent(1, [4, 5]), TokenEvent(1, [6])])
    told.repeat()
    heard = told_of(told, [TokenEvent(1, [4]), TokenEvent(1, [5, 7])])
    assert [event.finish_reason for event in heard] == ["error"]
    assert heard[0].error == "ranks were restarted, and the answer came out otherwise from token 2 on"


def test_ones_own_sleep_counts_as_nobodys_silence():
    clock = iter([0.0, 0.5, 1.0, 100.0, 100.5, 101.0, 101.5, 102.0, 102.5, 103.0])
    silence = Silence(3.0, 0.5, clock=lambda: next(clock))
    found = [silence.of_now() for _ in range(9)]
    assert found[:6] == [None] * 6  # the gap of 99 s was ours
    assert [silent_s for silent_s in found if silent_s is not None] == [3.5, 4.0, 4.5]


def test_what_is_heard_ends_a_silence():
    times = iter([0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0])
    silence = Silence(2.0, 1.0, clock=lambda: next(times))
    assert [silence.of_now(), silence.of_now()] == [None, None]
    silence.heard()
    assert [silence.of_now() for _ in range(4)] == [None, None, 2.5, 3.5]
