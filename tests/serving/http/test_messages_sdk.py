"""/v1/messages as the official Anthropic SDK uses it, with the tiny model."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FLIGHT = {
    "name": "book_flight",
    "description": "Book a flight",
    "input_schema": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "date": {"type": "string"}},
        "required": ["to", "date"],
    },
}
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(server: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def asked(server: Any, messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": server.model, "max_tokens": 120, "messages": messages} | more


def test_a_tool_loop_with_two_calls_at_once(server: Any, client: anthropic.Anthropic) -> None:
    words = "Get the weather with city Paris. Book the flight: to London, date 2024-05-06."
    history: list[Any] = [{"role": "user", "content": words}]
    wish = asked(server, history, tools=[WEATHER, FLIGHT])
    with client.messages.stream(**wish) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use" and kinds.count("content_block_stop") == 2
    assert [(block.name, block.input) for block in first.content if block.type == "tool_use"] == [
        ("get_weather", {"city": "Paris"}),
        ("book_flight", {"to": "London", "date": "2024-05-06"}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": json.dumps({"city": "Paris", "count": 21})}
        for block in first.content
    ]
    history += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = client.messages.create(**wish)
    assert second.stop_reason == "end_turn" and "Paris" in second.content[0].text
    assert second.usage.cache_read_input_tokens > 0 and second.usage.output_tokens > 0
    counted = client.messages.count_tokens(**{key: wish[key] for key in ("model", "messages", "tools")})
    assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens


def test_thinking_is_a_block_of_its_own(server: Any, client: anthropic.Anthropic) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(**asked(server, CAPITAL, thinking=thinking, extra_body={"temperature": 0})) as stream:
        kinds = [event.delta.type for event in stream if event.type == "content_block_delta"]
        message = stream.get_final_message()
    thought, answer = message.content
    assert thought.type == "thinking" and thought.thinking and thought.signature == message.id
    assert answer.type == "text" and answer.text == "The capital of France is Paris."
    order = list(dict.fromkeys(kinds))
    assert order == ["thinking_delta", "signature_delta", "text_delta"]
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_text_streams_and_a_stop_sequence_is_told(server: Any, client: anthropic.Anthropic) -> None:
    wish = asked(server, CAPITAL, stop_sequences=["zz", "is"])
    with client.messages.stream(**wish) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    whole = client.messages.create(**wish)
    assert text == whole.content[0].text == "The capital of France "
    for message in (streamed, whole):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "is")


def test_an_answer_is_cut_at_max_tokens_and_a_begun_one_goes_on(
    server: Any, client: anthropic.Anthropic
) -> None:  # X15
    cut = client.messages.create(**asked(server, CAPITAL, max_tokens=3))
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    begun = [*CAPITAL, {"role": "assistant", "content": cut.content[0].text}]
    rest = client.messages.create(**asked(server, begun))
    assert cut.content[0].text + rest.content[0].text == "The capital of France is Paris."


class Person(BaseModel):
    name: str
    age: int


def test_structured_output_is_parsed_by_the_sdk(server: Any, client: anthropic.Anthropic) -> None:
    words = [{"role": "user", "content": "Make a JSON object with name Anna and age 7."}]
    message = client.messages.parse(**asked(server, words), output_format=Person)
    assert message.parsed_output == Person(name="Anna", age=7)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_asked_for(server: Any, client: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    words = [{"role": "user", "content": "Paris"}]
    message = client.messages.create(**asked(server, words, tools=[WEATHER], tool_choice=choice, max_tokens=60))
    assert [block.name for block in message.content if block.type == "tool_use"] == ["get_weather"]
    assert message.stop_reason == "tool_use"


def test_calls_can_be_forbidden_or_held_to_one(server: Any, client: anthropic.Anthropic) -> None:
    words = [{"role": "user", "content": "Get the weather with city Paris. Get the weather with city London."}]
    one = client.messages.create(
        **asked(server, words, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    )
    assert [block.type for block in one.content] == ["tool_use"]
    none = client.messages.create(**asked(server, words, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=4))
    assert [block.type for block in none.content] == ["text"]
