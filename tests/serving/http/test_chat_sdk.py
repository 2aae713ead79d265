"""/v1/chat/completions as OpenAI's own client uses it, on the tiny model."""

from __future__ import annotations

import json
import re

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
STORY = [{"role": "user", "content": "Tell me a story."}]
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def collected(stream) -> dict[int, dict]:
    """Of a stream, by choice: all that its deltas add up to."""
    whole: dict[int, dict] = {}
    for chunk in stream:
        for choice in chunk.choices:
            one = whole.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": {}, "reason": None, "ids": set()}
            )
            one["ids"].add((chunk.id, chunk.created, chunk.model))
            one["content"] += choice.delta.content or ""
            one["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            one["reason"] = choice.finish_reason or one["reason"]
            for call in choice.delta.tool_calls or ():
                name, arguments = one["calls"].get(call.index, ("", ""))
                one["calls"][call.index] = (
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments or ""),
                )
    return whole


def test_a_chat_and_its_usage(client, server):
    done = client.chat.completions.create(model=server.model, messages=STORY, max_tokens=12)
    (choice,) = done.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert done.usage.completion_tokens == 12 and done.usage.total_tokens == done.usage.prompt_tokens + 12
    assert done.usage.completion_tokens_details.reasoning_tokens == 0
    assert done.model == server.model and done.id.startswith("chatcmpl-") and done.object == "chat.completion"


def test_a_repeated_prompt_is_told_as_cached(client, server):
    long = [{"role": "user", "content": "One two three four five six seven. " * 40}]
    first, second = (client.chat.completions.create(model=server.model, messages=long, max_tokens=2) for _ in range(2))
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert 0 < cached <= first.usage.prompt_tokens == second.usage.prompt_tokens
    assert first.choices[0].message.content == second.choices[0].message.content


@pytest.mark.parametrize("thinking", [False, True])
def test_x23_a_stream_adds_up_to_the_whole(client, server, thinking):
    asked = {
        "model": server.model,
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
        "max_tokens": 120,
        "seed": 7,
        "n": 2,
        "temperature": 0.8,
        "extra_body": {"thinking": {"type": "enabled" if thinking else "disabled"}},
    }
    whole = client.chat.completions.create(**asked)
    usages = []
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    parts = collected(usages.append(chunk.usage) or chunk for chunk in stream)
    assert sorted(parts) == [0, 1] and len(parts[0]["ids"] | parts[1]["ids"]) == 1
    for choice in whole.choices:
        one, message = parts[choice.index], choice.message
        told = one["content"], one["reasoning"] or None, one["reason"]
        assert told == (message.content, getattr(message, "reasoning_content", None), choice.finish_reason)
        assert bool(one["reasoning"]) == thinking
    assert usages[:-1] == [None] * (len(usages) - 1)
    counted = [
        (one.prompt_tokens, one.completion_tokens, one.completion_tokens_details) for one in (usages[-1], whole.usage)
    ]
    assert counted[0] == counted[1] and bool(counted[0][2].reasoning_tokens) == thinking


def test_m13_answers_of_one_request_come_from_its_seed(client, server):
    """Each of its own, the same each time, and the first as if it were alone."""
    asked = {"model": server.model, "messages": STORY, "max_tokens": 10, "seed": 5, "n": 3, "temperature": 1.0}
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2] and len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    alone = client.chat.completions.create(**{**asked, "n": 1})
    assert alone.choices[0].message.content == texts[0]


def test_log_probabilities_are_those_of_the_text(client, server):
    asked = {"model": server.model, "messages": STORY, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content and len(entries) == 8
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token and len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0.0, "greedy takes the likeliest"
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True)
        for part in chunk.choices
        for entry in (part.logprobs.content if part.logprobs else ())
    ]
    assert [(one.token, one.bytes) for one in streamed] == [(one.token, one.bytes) for one in entries]


def test_log_probabilities_of_thoughts_stand_beside_those_of_the_answer(client, server):
    done = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "What is 3 + 4?"}],
        max_tokens=200,
        logprobs=True,
        extra_body={"thinking": {"type": "enabled"}},
    )
    (choice,) = done.choices
    thought = "".join(entry["token"] for entry in choice.logprobs.reasoning_content)
    assert thought.strip() == choice.message.reasoning_content.strip() != ""
    assert "".join(entry.token for entry in choice.logprobs.content).strip() == choice.message.content.strip()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_is_one(client, server, choice):
    done = client.chat.completions.create(
        model=server.model, messages=STORY, tools=[WEATHER], tool_choice=choice, max_tokens=200
    )
    (answer,) = done.choices
    assert answer.finish_reason == "tool_calls"
    for call in answer.message.tool_calls:
        assert call.function.name == "get_weather" and list(json.loads(call.function.arguments)) == ["city"] and call.id


def test_a_tool_loop(client, server):
    """The model calls, the tool answers, the model goes on; streamed and not, the same."""
    asked = {"model": server.model, "messages": PARIS, "tools": [WEATHER], "max_tokens": 100}
    first = client.chat.completions.create(**asked).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert first.message.content is None
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    streamed = collected(client.chat.completions.create(**asked, stream=True))[0]
    assert streamed["reason"] == "tool_calls" and streamed["calls"] == {0: ("get_weather", call.function.arguments)}
    history = [
        *PARIS,
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = client.chat.completions.create(**asked | {"messages": history}).choices[0]
    assert second.finish_reason == "stop" and second.message.content and not second.message.tool_calls


def test_without_a_choice_of_tools_there_is_none(client, server):
    done = client.chat.completions.create(
        model=server.model, messages=PARIS, tools=[WEATHER], tool_choice="none", max_tokens=20
    )
    assert not done.choices[0].message.tool_calls


def test_strict_tools_and_a_form_of_the_answer_go_together(client, server):
    """What agent frameworks ask: call strict tools, or answer in this form."""
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    done = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Tell me a story about a cat."}],
        tools=[strict],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}},
        max_tokens=100,
    )
    (choice,) = done.choices
    if choice.finish_reason == "tool_calls":
        assert list(json.loads(choice.message.tool_calls[0].function.arguments)) == ["city"]
    else:
        assert json.loads(choice.message.content) in ("yes", "no")


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_g06_structured_output_is_parsed(client, server, thinking):
    done = client.chat.completions.parse(
        model=server.model,
        messages=[{"role": "user", "content": "Tom is 5 years old. Give his name and age as json."}],
        response_format=Person,
        max_tokens=600,
        extra_body={"thinking": {"type": thinking}},
    )
    message = done.choices[0].message
    assert isinstance(message.parsed, Person)
    assert bool(getattr(message, "reasoning_content", None)) == (thinking == "enabled")


@pytest.mark.parametrize(
    ("extra", "legal"),
    [
        ({"guided_regex": "(red|blue) [0-9]{2}"}, r"(red|blue) [0-9]{2}"),
        ({"guided_choice": ["alpha", "beta"]}, r"alpha|beta"),
        ({"guided_json": {"type": "integer", "minimum": 10, "maximum": 12}}, r"10|11|12"),
        ({"guided_grammar": 'root ::= "a" "b"+ "c"'}, r"ab+c"),
        ({"structured_outputs": {"regex": "[0-4]{3}"}}, r"[0-4]{3}"),
        ({"response_format": {"type": "regex", "regex": "x{2}y"}}, r"xxy"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_forms_under_the_names_that_others_use(server, extra, legal):
    body = {"messages": STORY, "max_tokens": 40, **extra}
    (choice,) = server.post("/v1/chat/completions", body).json()["choices"]
    assert re.fullmatch(legal, choice["message"]["content"]), choice


def test_a_stop_string_ends_an_answer_and_the_engine_hears(client, server):
    whole = client.chat.completions.create(model=server.model, messages=STORY, max_tokens=40).choices[0].message.content
    stop = whole[10:14]
    done = client.chat.completions.create(model=server.model, messages=STORY, max_tokens=40, stop=[stop])
    assert done.choices[0].message.content == whole[: whole.index(stop)] and done.choices[0].finish_reason == "stop"
    assert done.usage.completion_tokens < 40 and server.service.line.num_open == 0


def test_x15_an_answer_that_was_begun_is_continued(client, server):
    begun = [*STORY, {"role": "assistant", "content": "Once upon a"}]
    done = client.chat.completions.create(model=server.model, messages=begun, max_tokens=4)
    assert done.choices[0].message.content.startswith(" time")


def test_errors_are_the_clients_own(client, server):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=server.model, messages=STORY, temperature=7.0)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-5", messages=STORY)
    assert unknown.value.code == "model_not_found"
