"""/v1/responses as the official OpenAI SDK and an agent framework use it, with the tiny model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.serving.dialect_streams import events

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
ASK = "Get the weather with city Paris."
RESULT = json.dumps({"city": "Paris", "count": 21})


@pytest.fixture(scope="module")
def client(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_response_is_made_fetched_and_deleted(server: Any, client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=server.model, input="What is the capital of France?", metadata={"a": "b"}, max_output_tokens=20
    )
    assert made.output_text == "The capital of France is Paris." and made.status == "completed"
    assert made.usage and made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    assert client.responses.retrieve(made.id) == made
    items = client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in items] == ["What is the capital of France?"]
    client.responses.delete(made.id)
    for call in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)


def test_a_tool_loop_by_previous_response_id(server: Any, client: openai.OpenAI) -> None:
    with client.responses.stream(model=server.model, input=ASK, tools=[WEATHER], max_output_tokens=60) as stream:
        events = list(stream)
        first = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    (call,) = first.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    told = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert told == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    wish: dict[str, Any] = {"model": server.model, "tools": [WEATHER], "max_output_tokens": 20}
    chained = client.responses.create(**wish, input=[result], previous_response_id=first.id)
    assert "Paris" in chained.output_text and chained.previous_response_id == first.id
    assert chained.usage.input_tokens_details.cached_tokens > 0
    history = [{"role": "user", "content": ASK}, *(item.model_dump() for item in first.output), result]
    sent = client.responses.create(**wish, input=history, store=False)
    assert sent.output_text == chained.output_text and sent.usage.input_tokens == chained.usage.input_tokens
    with pytest.raises(openai.NotFoundError, match=sent.id):
        client.responses.retrieve(sent.id)


class Person(BaseModel):
    name: str
    age: int


def test_structured_output_is_parsed_by_the_sdk(server: Any, client: openai.OpenAI) -> None:
    words = "Make a JSON object with name Anna and age 7."
    parsed = client.responses.parse(model=server.model, input=words, text_format=Person, max_output_tokens=40)
    assert parsed.output_parsed == Person(name="Anna", age=7)


def test_a_grammar_that_cannot_be_compiled_ends_its_response_alone(server: Any) -> None:
    schema = {"type": "string", "pattern": "(?=a)b"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    body = {"model": server.model, "input": "hi", "text": text, "max_output_tokens": 3}
    whole = server.post("/v1/responses", body)
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "invalid_grammar")
    last = events(server.post("/v1/responses", body | {"stream": True}).content)[-1]
    assert last["type"] == "response.failed" and last["response"]["error"]["code"] == "invalid_prompt"
    messages = {"model": server.model, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    messages["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    refused = server.post("/v1/messages", messages | {"stream": True})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")


def test_thinking_is_an_item_of_its_own(server: Any, client: openai.OpenAI) -> None:
    wish: dict[str, Any] = {"model": server.model, "input": "What is the capital of France?", "temperature": 0}
    with client.responses.stream(**wish, reasoning={"effort": "low"}, max_output_tokens=30) as stream:
        told = "".join(event.delta for event in stream if event.type == "response.reasoning_text.delta")
        made = stream.get_final_response()
    thought, answer = made.output
    assert thought.type == "reasoning" and thought.content[0].text == told != ""
    assert answer.content[0].text == made.output_text == "The capital of France is Paris."
    assert 0 < made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens


def test_log_probabilities_are_told_with_the_text(server: Any, client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=server.model,
        input="What is the capital of France?",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=20,
    )
    entries = made.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries) == made.output_text
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob for entry in entries)


def test_an_agent_framework_runs_its_loop(server: Any) -> None:
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool

    asked: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the weather"""
        asked.append(city)
        return RESULT

    async def run() -> Any:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        model = OpenAIResponsesModel(model=server.model, openai_client=client)
        agent = Agent(name="Weatherman", model=model, tools=[get_weather])
        return await Runner.run(agent, ASK, max_turns=3, run_config=RunConfig(tracing_disabled=True))

    result = asyncio.run(run())
    assert asked == ["Paris"] and result.final_output == "The city is Paris. The count is 21."
