"""Bodies of the Messages API: read as DeepSeek's own library reads them, and what it drops is honoured or refused by name."""

import json
from typing import Any

import deepseek_recipe as recipe
import pytest

from deepinfer.serving.chat_ask import ChatAsk
from deepinfer.serving.chat_reader import MODEL
from deepinfer.serving.fields import FieldError
from deepinfer.serving.messages_request import read_count_tokens, read_messages

TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
USER = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(number: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {"a": str(number)}}


def result(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": f"t{number}", "content": "done"} | more


def turn(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def asked(**fields: Any) -> ChatAsk:
    return read_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]} | fields).encode())


def rendered(request: Any) -> str:
    conversation = request.convert(recipe.ConversionOptions()).conversation
    return recipe.DeepseekV41Encoding().render_conversation(conversation).prompt


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    "system", [None, "be kind", [text("be"), text("kind") | {"cache_control": {"type": "ephemeral"}}]]
)
@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, turn("assistant", text("x"), text("y")), turn("user", text("a"), text("b"))],
        [USER, turn("assistant", THOUGHT, text("x"), use(1), use(2)), turn("user", result(1), result(2), text("go"))],
        [USER, turn("assistant", use(1)), turn("user", result(1, content=[text("p"), text("q")], is_error=False))],
        [USER, turn("assistant", use(1)), turn("user", result(1, content=None)), turn("assistant", text("z")), USER],
    ],
)
def test_a_conversation_renders_as_the_library_renders_it(messages: list[Any], system: Any, thinking: bool) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": messages, "tools": [TOOL]} | (
        {"system": system} if system else {}
    )
    body["thinking"] = {"type": "enabled" if thinking else "disabled"}
    ask = read_messages(json.dumps(body).encode())
    chat = {"model": MODEL, "messages": ask.messages, "tools": ask.tools, "thinking": body["thinking"]}
    assert rendered(recipe.ChatCompletionRequest(chat)) == rendered(recipe.MessagesRequest(body))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([USER, {"role": "tool", "content": "x"}], "messages.1.role"),
        (["hi"], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([USER, turn("user", text("a"), IMAGE)], "messages.1.content.1"),
        ([turn("user", {"type": "document", "source": {}})], "messages.0.content.0"),
        ([USER, turn("assistant", use(1)), turn("user", result(1, content=[IMAGE]))], "messages.2.content.0.content.0"),
        ([USER, turn("assistant", {"type": "redacted_thinking", "data": "x"})], "messages.1.content.0"),
        ([USER, turn("user", result(1))], "messages.1.content.0.tool_use_id"),
        (
            [USER, turn("assistant", use(1)), turn("user", result(1)), turn("user", result(1))],
            "messages.3.content.0.tool_use_id",
        ),
        ([USER, turn("assistant", text("x"), use(1)), USER], "messages.1.content.1"),
        ([USER, turn("assistant", use(1))], "messages.1.content.0"),
        ([USER, turn("assistant", {"type": "tool_use", "name": "f"})], "messages.1.content.0.id"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(messages: Any, param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(messages=messages)
    assert caught.value.param == param and param.removesuffix(".tool_use_id") in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"foo": 1}, "foo"),
        ({"stop": ["x"]}, "stop"),
        ({"speed": "fast"}, "speed"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
        ({"model": 3}, "model"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"task_budget": 5}}, "output_config.task_budget"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "display": "omitted"}}, "thinking.display"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"name": "g"}]}, "tools.1.input_schema"),
        ({"tools": [TOOL | {"input_examples": [{"a": "b"}]}]}, "tools.0.input_examples"),
        ({"tool_choice": {"type": "required"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"top_k": 1.5}, "top_k"),
    ],
)
def test_what_is_not_read_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(**fields)
    assert caught.value.param == param and param in str(caught.value)


def test_hints_change_nothing() -> None:
    hints = {"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}}
    assert asked(**hints, speed="standard", mcp_servers=[]) == asked()
    hinted = TOOL | {"cache_control": {"type": "ephemeral"}, "type": "custom", "defer_loading": False}
    assert asked(tools=[hinted]) == asked(tools=[TOOL])


def test_what_the_library_drops_is_kept() -> None:
    schema = {"type": "object"}
    ask = asked(
        top_k=4,
        stop_sequences=["x"],
        tools=[TOOL | {"strict": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
    )
    assert ask.sampling == {"top_k": 4, "stop": ["x"]} and ask.max_tokens == 9
    assert ask.tool_choice == "required" and not ask.parallel_tool_calls
    assert ask.tools and ask.tools[0]["function"]["strict"] is True
    assert ask.response_format == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert ask.reasoning_effort == "low"


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_choices_in_the_terms_of_chat_completions(choice: dict[str, Any], told: Any) -> None:
    assert asked(tools=[TOOL], tool_choice=choice).tool_choice == told


def test_a_budget_of_thinking_is_said_not_to_be_enforced() -> None:
    ask = asked(thinking={"type": "enabled", "budget_tokens": 1024})
    assert ask.thinking is True and "budget_tokens=1024 is not enforced" in ask.notices[0]
    assert asked(thinking={"type": "disabled"}).thinking is False and asked().thinking is None


def test_a_begun_answer_is_not_continued_beside_tools() -> None:
    begun = [USER, turn("assistant", text("Well,"))]
    assert asked(messages=begun).messages[-1]["content"] == "Well,"
    with pytest.raises(FieldError, match=r"messages: .*beside tools"):
        asked(messages=begun, tools=[TOOL])


def test_counting_takes_a_prompt_and_nothing_else() -> None:
    body = {"model": "m", "messages": [USER], "system": "s", "tools": [TOOL]}
    assert read_count_tokens(json.dumps(body).encode()).messages[0] == {"role": "system", "content": "s"}
    with pytest.raises(FieldError, match="max_tokens"):
        read_count_tokens(json.dumps(body | {"max_tokens": 4}).encode())


def test_a_result_that_went_wrong_says_so_in_its_text() -> None:
    def told(**more: Any) -> str:
        turns = [USER, turn("assistant", use(1)), turn("user", result(1, **more))]
        return str(asked(messages=turns, tools=[TOOL]).messages[-1]["content"])

    assert told(is_error=True) == "Error: done" and told(is_error=False) == told() == "done"
    with pytest.raises(FieldError, match="is_error"):
        told(is_error="yes")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (USER | {"name": "bob"}, "messages.0.name"),
        (turn("user", text("a") | {"x": 1}), "messages.0.content.0.x"),
        (turn("assistant", {"type": "thinking", "thinking": "a", "x": 1}), "messages.0.content.0.x"),
        (turn("assistant", use(1) | {"x": 1}), "messages.0.content.0.x"),
        (turn("user", result(1) | {"x": 1}), "messages.0.content.0.x"),
        (turn("user", text("a") | {"citations": [{"cited_text": "b"}]}), "messages.0.content.0.citations"),
    ],
)
def test_names_inside_blocks_are_refused_with_their_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(messages=[message])
    assert caught.value.param == param


def test_what_clients_send_back_of_a_message_is_taken() -> None:
    again = {"cache_control": {"type": "ephemeral"}}
    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "s"},
        text("a") | again | {"citations": None},
        use(1) | again | {"caller": {"type": "direct"}},
    ]
    assert asked(messages=[USER, turn("assistant", *blocks), turn("user", result(1) | again)], tools=[TOOL])


def test_a_format_holds_nothing_else() -> None:
    with pytest.raises(FieldError) as caught:
        asked(output_config={"format": {"type": "json_schema", "schema": {}, "x": 1}})
    assert caught.value.param == "output_config.format.x"
