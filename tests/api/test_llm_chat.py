"""Conversations through the library door, on the toy model: messages, notices, streams."""

import pytest

from deepinfer.api import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def test_chat_gives_messages_and_notices(llm: LLM) -> None:
    (out,) = llm.chat("hello", SamplingParams(temperature=0.0, top_p=0.9, max_tokens=5))
    assert out.text == "abcde" and out.message.content == "abcde" and out.message.tool_calls == ()
    assert "top_p=0.9 stays as asked" in out.notices[0]
    many = llm.chat([[{"role": "user", "content": "a"}], [{"role": "usher", "content": "b"}]], GREEDY)
    assert many[0].error is None and "usher" in many[1].error
    (thinking,) = llm.chat([{"role": "user", "content": "a"}], GREEDY, thinking=True)
    assert len(thinking.notices) == 1 and thinking.message.reasoning_content


def test_what_a_caller_chose_wins_over_the_format_and_defaults_do_not(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0)
    (chosen,) = llm.chat("a", greedy, thinking=True)
    assert chosen.text == "abcdef" and "temperature=0 stays as asked" in chosen.notices[0]
    llm.default_params = SamplingParams(temperature=0.0, max_tokens=6, seed=1)
    (silent,) = llm.chat("a", thinking=True)
    assert "temperature=0 becomes 1" in silent.notices[0]
    llm.asked = frozenset({"temperature"})
    (overridden,) = llm.chat("a", thinking=True)
    assert "stays as asked" in overridden.notices[0] and overridden.text == "abcdef"


def test_what_nothing_enforces_is_said(llm: LLM) -> None:
    (out,) = llm.chat("as json", GREEDY, response_format={"type": "json_object"})
    assert [notice.partition(" is ")[0] for notice in out.notices] == ["response_format"]
    assert llm.chat("as text", GREEDY, response_format={"type": "text"})[0].notices == ()


@pytest.mark.parametrize("thinking", [False, True])
def test_a_streamed_chat_joins_to_its_message(llm: LLM, thinking: bool) -> None:
    conversation = [{"role": "user", "content": "a"}]
    if thinking:  # the toy model never closes its thinking by itself: let it follow byte by byte to the marker
        _lead_to(llm, "c", "</think>")
    params = SamplingParams(temperature=0.0, max_tokens=7)
    events = list(llm.stream(conversation, params, thinking=thinking))
    (out,) = llm.chat(conversation, params, thinking=thinking)
    assert "".join(event.text for event in events) == out.message.content == ("abc" if thinking else "abcdefg")
    assert "".join(event.reasoning for event in events) == (out.message.reasoning_content or "")
    assert out.message.reasoning_content == ("abc" if thinking else None)
    assert events[-1].message == out.message and [event.message for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[0].notices == out.notices and len(out.notices) == thinking


def test_a_chat_that_cannot_be_streamed(llm: LLM) -> None:
    (event,) = llm.stream([{"role": "usher", "content": "b"}], GREEDY)
    assert event.finish_reason == "error" and "usher" in event.error
    with pytest.raises(ValueError, match="thinking shape"):
        llm.stream("a", GREEDY, thinking=True)


def _lead_to(llm: LLM, letter: str, marker: str) -> None:
    """The toy model says `marker` after `letter`, and "a" after that."""
    (letter_id,) = llm.tokenizer.encode(letter)
    llm.engine.executor.next_id[letter_id] = llm.tokenizer.token_id(marker)
