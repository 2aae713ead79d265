"""Answers told as events of the Responses API, however their tokens come."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from deepinfer.interfaces import SamplingParams, TokenLogprobs
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.codec import Codec
from deepinfer.serving.responses_events import ResponsesEvents
from deepinfer.serving.responses_request import read_responses
from tests.serving.dialect_streams import CALLS, CLOSED, call, events, output_of, pieces

SIZES = [1, 2, 3, 7, 50, 1000]
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
    for name in ("f", "g")
]


@pytest.fixture(scope="module")
def codec(chat_tokenizer: BpeTokenizer) -> Codec:
    return Codec(chat_tokenizer, eos_token_ids=[1])


def begun(codec: Codec, **fields: Any) -> ResponsesEvents:
    ask = read_responses(json.dumps({"model": "m", "input": "hi", "reasoning": {"effort": "none"}} | fields).encode())
    chat = ask.chat()
    params = SamplingParams(max_tokens=500, **chat.sampling)
    prompt = codec.encode(
        chat.messages,
        params,
        thinking=bool(chat.thinking),
        reasoning_effort=chat.reasoning_effort,
        tools=chat.tools,
        asked=chat.sampling,
    )
    return ResponsesEvents(ask, prompt, codec, response_id="resp_1", model="m", entries=ids_of)


def ids_of(logprobs: list[TokenLogprobs]) -> list[dict[str, Any]]:
    """In place of OpenAI's form: the ids of the chosen tokens."""
    return [{"id": int(entry.token_ids[0])} for entry in logprobs]


def told(stream: ResponsesEvents, given: Any) -> list[dict[str, Any]]:
    sent = stream.begin()
    for piece in given:
        sent += stream.push(piece)
    return events(sent + stream.last())


@pytest.mark.parametrize("size", SIZES)
def test_events_come_in_order_and_add_up_to_the_response(codec: Codec, chat_tokenizer: BpeTokenizer, size: int) -> None:
    text = (
        "I see.</think>Sure 😀." + CALLS + call("f", x="1") + call("g", x="a <b> c") + CLOSED
    )  # X11: a piece spans all
    stream = begun(codec, tools=TOOLS, reasoning={"effort": "high"})
    items = output_of(told(stream, pieces(chat_tokenizer, text, size)))
    assert [item["type"] for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]  # X12: typed items
    assert (
        items[0]["content"] == [{"type": "reasoning_text", "text": "I see."}] and items[0]["encrypted_content"] is None
    )
    assert items[1]["content"][0]["text"] == "Sure 😀."
    calls = [(item["name"], json.loads(item["arguments"])) for item in items[2:]]
    assert calls == [("f", {"x": "1"}), ("g", {"x": "a <b> c"})]
    assert len({item["call_id"] for item in items[2:]}) == 2 and all(item["status"] == "completed" for item in items)
    assert stream.final and stream.final["status"] == "completed"


@pytest.mark.parametrize("size", SIZES)
def test_an_id_and_a_name_come_before_the_arguments(
    codec: Codec, chat_tokenizer: BpeTokenizer, size: int
) -> None:  # X08
    sent = told(begun(codec, tools=TOOLS), pieces(chat_tokenizer, "Well" + CALLS + call("f", x="1") + CLOSED, size))
    added = next(
        event for event in sent if event["type"] == "response.output_item.added" and event["output_index"] == 1
    )
    done = next(event for event in sent if event["type"] == "response.output_item.done" and event["output_index"] == 1)
    for name in ("id", "call_id", "name"):
        assert added["item"][name] == done["item"][name]
    assert added["item"]["arguments"] == ""


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_that_was_cut_is_incomplete(codec: Codec, chat_tokenizer: BpeTokenizer, size: int) -> None:
    stream = begun(codec, max_output_tokens=9)
    items = output_of(sent := told(stream, pieces(chat_tokenizer, "It ends in a <", size, reason="length")))
    assert items[0]["content"][0]["text"] == "It ends in a <"
    assert sent[-1]["type"] == "response.incomplete" and sent[-1]["response"]["status"] == "incomplete"
    assert sent[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert sent[-1]["response"]["completed_at"] is None


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("text", "open_item"),
    [
        ("", None),
        ("half a tho", "reasoning"),
        ("a</think>half an ans", "message"),
        ("a</think>b" + CALLS + call("f", x="1")[:-20], "message"),
    ],
)
def test_a_response_that_fails_closes_what_is_open(
    codec: Codec, chat_tokenizer: BpeTokenizer, text: str, open_item: str | None, size: int
) -> None:
    stream = begun(codec, tools=TOOLS, reasoning={"effort": "high"})
    sent = stream.begin()
    for piece in pieces(chat_tokenizer, text, size, reason="length"):
        sent += stream.push(msgspec.structs.replace(piece, finish_reason=None))
    error = {"code": "server_error", "message": "the engine is lost"}
    sent += stream.end("failed", error)
    items = output_of(made := events(sent + stream.last()))
    assert made[-1]["type"] == "response.failed" and made[-1]["response"]["error"] == error
    assert made[-1]["response"]["status"] == "failed" and made[-1]["response"]["incomplete_details"] is None
    assert (items[-1]["type"] if items else None) == open_item
    assert "function_call" not in [item["type"] for item in items], "half a call is nothing that a client may run"


def test_a_cancelled_response_says_so(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    stream = begun(codec)
    sent = stream.begin()
    for piece in pieces(chat_tokenizer, "half", 2, reason="length"):
        sent += stream.push(msgspec.structs.replace(piece, finish_reason=None))
    made = events(sent + stream.end("cancelled") + stream.last())
    assert (made[-1]["type"], made[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert output_of(made)[0]["content"][0]["text"] == "half"


def test_settings_are_told_back_and_tokens_are_counted(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    wishes: dict[str, Any] = {
        "instructions": "be kind",
        "metadata": {"a": "b"},
        "max_output_tokens": 77,
        "temperature": 0.5,
        "tools": TOOLS,
        "tool_choice": "none",
        "user": "u",
        "store": False,
    }
    stream = begun(codec, **wishes, reasoning={"effort": "low"}, previous_response_id="resp_0")
    prompt_tokens = stream._num_prompt
    sent = told(stream, pieces(chat_tokenizer, "abc</think>de", 2, cached_tokens=5))
    for event in (*sent[:2], sent[-1]):
        response = event["response"]
        assert {name: response[name] for name in wishes if name != "tools"} == {
            name: value for name, value in wishes.items() if name != "tools"
        }
        assert [tool["name"] for tool in response["tools"]] == ["f", "g"]
        assert response["previous_response_id"] == "resp_0" and response["reasoning"]["effort"] == "low"
        assert (response["id"], response["created_at"]) == ("resp_1", sent[0]["response"]["created_at"])
    assert sent[0]["response"]["usage"] is None
    assert sent[-1]["response"]["usage"] == {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": prompt_tokens + 7,
    }


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_log_probabilities_are_those_of_the_text(codec: Codec, chat_tokenizer: BpeTokenizer, size: int) -> None:
    stream = begun(codec, include=["message.output_text.logprobs"], top_logprobs=1, reasoning={"effort": "high"})
    given = []
    for piece in pieces(chat_tokenizer, "ab</think>cdé", size):
        piece.logprobs = [logprobs_of(token_id) for token_id in piece.token_ids]
        given.append(piece)
    sent = told(stream, given)
    of_deltas = [
        entry for event in sent if event["type"] == "response.output_text.delta" for entry in event["logprobs"]
    ]
    done = next(event for event in sent if event["type"] == "response.output_text.done")
    assert [entry["id"] for entry in done["logprobs"]] == chat_tokenizer.encode("cdé")
    assert of_deltas == done["logprobs"] == sent[-1]["response"]["output"][1]["content"][0]["logprobs"]


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_ids=np.array([token_id, 7]), logprobs=np.float32([-0.5, -1.0]), rank=1)


def test_no_delta_is_empty(codec: Codec, chat_tokenizer: BpeTokenizer) -> None:
    stream = begun(codec, reasoning={"effort": "high"})
    sent = told(stream, pieces(chat_tokenizer, "a😀</think>b\n\nc", 1))
    assert all(event["delta"] for event in sent if event["type"].endswith(".delta"))
