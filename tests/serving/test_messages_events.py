"""Answers told as events of the Messages API, however their tokens come."""

from typing import Any

import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.codec import ChatPrompt, Codec
from deepinfer.serving.messages_events import MessagesEvents
from tests.serving.dialect_streams import CALLS, CLOSED, call, events, message_of, pieces

SIZES = [1, 2, 3, 7, 50, 1000]
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
    }
    for name in ("f", "g")
]


@pytest.fixture(scope="module")
def codec(chat_tokenizer: BpeTokenizer) -> Codec:
    return Codec(chat_tokenizer, eos_token_ids=[1])


def prompted(codec: Codec, *, thinking: bool = False, tools: Any = None, **params: Any) -> ChatPrompt:
    return codec.encode("hi", SamplingParams(max_tokens=500, **params), thinking=thinking, tools=tools)


def streamed(
    codec: Codec, tokenizer: BpeTokenizer, prompt: ChatPrompt, text: str, size: int, **more: Any
) -> dict[str, Any]:
    """The message that the stream adds up to, which is the whole message too."""
    stream, whole = (MessagesEvents(prompt, codec, "msg_1", "m") for _ in range(2))
    sent = b"".join(stream.push(piece) for piece in pieces(tokenizer, text, size, **more))
    for piece in pieces(tokenizer, text, size, **more):
        whole.add(piece)
    told, made = message_of(events(sent)), whole.whole()
    for block in (*told["content"], *made["content"]):
        if block["type"] == "tool_use":
            assert block.pop("id").startswith("call_")  # which is drawn
    assert told == made
    return told


@pytest.mark.parametrize("size", SIZES)
def test_thinking_text_and_three_calls_are_five_blocks(
    codec: Codec, chat_tokenizer: BpeTokenizer, size: int
) -> None:  # X09
    text = "I see.</think>Sure 😀." + CALLS + call("f", x="1") + call("g", x="a <b> c") + call("f", x="3") + CLOSED
    message = streamed(codec, chat_tokenizer, prompted(codec, thinking=True, tools=TOOLS), text, size)
    assert message["content"] == [
        {"type": "thinking", "thinking": "I see.", "signature": "msg_1"},
        {"type": "text", "text": "Sure 😀."},
        {"type": "tool_use", "name": "f", "input": {"x": "1"}},
        {"type": "tool_use", "name": "g", "input": {"x": "a <b> c"}},
        {"type": "tool_use", "name": "f", "input": {"x": "3"}},
    ]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert (message["id"], message["role"], message["model"]) == ("msg_1", "assistant", "m")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("begin", ["", "thinking aloud</think>"])
def test_a_stop_sequence_is_told_with_its_text(
    codec: Codec, chat_tokenizer: BpeTokenizer, size: int, begin: str
) -> None:
    prompt = prompted(codec, thinking=bool(begin), stop=("zz", "\nHuman:"))
    message = streamed(codec, chat_tokenizer, prompt, begin + "Hello\nHum\nHuman: more", size)
    assert message["content"][-1] == {"type": "text", "text": "Hello\nHum"}
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\nHuman:")


@pytest.mark.parametrize(("reason", "told"), [("stop", "end_turn"), ("length", "max_tokens")])
@pytest.mark.parametrize("size", SIZES)
def test_why_an_answer_ended(codec: Codec, chat_tokenizer: BpeTokenizer, size: int, reason: str, told: str) -> None:
    message = streamed(codec, chat_tokenizer, prompted(codec), "It ends in a <", size, reason=reason)
    assert message["stop_reason"] == told and message["content"] == [{"type": "text", "text": "It ends in a <"}]  # X02


def test_cached_tokens_are_counted_once(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:  # X10
    prompt = prompted(codec, thinking=True, tools=TOOLS)
    cached = len(prompt.prompt_ids) - 40
    stream = MessagesEvents(prompt, codec, "msg_1", "m")
    sent = events(b"".join(map(stream.push, pieces(chat_tokenizer, "abc</think>de", 2, cached_tokens=cached))))
    assert {"type": "ping"} in sent
    for usage in (sent[0]["message"]["usage"], sent[-2]["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (40, cached)
    spent = sent[-2]["usage"]
    assert (sent[0]["message"]["usage"]["output_tokens"], spent["output_tokens"]) == (0, 7)
    assert spent["output_tokens_details"] == {"thinking_tokens": 3}


@pytest.mark.parametrize("size", SIZES)
def test_a_malformed_call_is_text(codec: Codec, chat_tokenizer: BpeTokenizer, size: int) -> None:  # X06
    prompt = prompted(codec, tools=TOOLS)
    message = streamed(codec, chat_tokenizer, prompt, "Look" + CALLS + call("nobody", x="1") + CLOSED, size)
    assert [block["type"] for block in message["content"]] == ["text"] and message["stop_reason"] == "end_turn"
    assert "nobody" in message["notices"][0]


def test_an_empty_answer_is_a_message_without_blocks(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    message = streamed(codec, chat_tokenizer, prompted(codec), "", 1)
    assert message["content"] == [] and message["stop_reason"] == "end_turn"


def test_no_delta_is_empty(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    stream = MessagesEvents(prompted(codec, thinking=True), codec, "msg_1", "m")
    sent = events(b"".join(map(stream.push, pieces(chat_tokenizer, "a😀</think>b\n\nc", 1))))
    deltas = [event["delta"] for event in sent if event["type"] == "content_block_delta"]
    assert all(delta.get("text", delta.get("thinking", "x")) for delta in deltas)
