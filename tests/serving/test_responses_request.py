"""Bodies of the Responses API: read as DeepSeek's own library reads them, and nothing of them silently left out."""

import json
from typing import Any

import deepseek_recipe as recipe
import pytest

from deepinfer.serving.chat_reader import MODEL
from deepinfer.serving.fields import FieldError
from deepinfer.serving.responses_request import ResponsesAsk, read_responses

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
USER = {"role": "user", "content": "hi"}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": f'{{"a":"{number}"}}'} | more


def result(number: int, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": output}


def asked(**fields: Any) -> ResponsesAsk:
    return read_responses(json.dumps({"model": "m", "input": "hi"} | fields).encode())


def messages(items: list[Any]) -> list[dict[str, Any]]:
    return asked(input=items, tools=[TOOL]).chat().messages


def rendered(request: Any, options: recipe.ConversionOptions) -> str:
    return recipe.DeepseekV41Encoding().render_conversation(request.convert(options).conversation).prompt


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    "items",
    [
        [USER],
        [{"role": "developer", "content": "d"}, USER, {"role": "system", "content": "s"}, USER],
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
        [USER, said("x"), said("y"), USER],
        [USER, thought("t1"), thought("t2"), said("x"), USER],
        [USER, thought("t"), said("x"), call(1), call(2), result(2), result(1), USER],
        [USER, call(1), result(1), thought("t"), call(2), result(2, [{"type": "input_text", "text": "p"}]), USER],
    ],
)
def test_a_conversation_renders_as_the_library_renders_it(items: list[Any], thinking: bool) -> None:
    body = {"model": MODEL, "input": items, "instructions": "be kind", "tools": [TOOL]}
    body["reasoning"] = {"effort": "high" if thinking else "none"}
    ask = read_responses(json.dumps(body).encode()).chat()
    chat = {"model": MODEL, "messages": ask.messages, "tools": ask.tools}
    chat["thinking"] = {"type": "enabled" if ask.thinking else "disabled"}
    options = recipe.ConversionOptions()
    ours, theirs = recipe.ChatCompletionRequest(chat), recipe.ResponsesRequest(body)
    assert rendered(ours, options) == rendered(theirs, options)


def test_parallel_calls_sent_back_one_by_one_are_one_turn_again() -> None:  # X16
    mixed = [USER, call(1, id="fc_resp_9_1"), result(1), call(2, id="fc_resp_9_2"), result(2)]
    turn = messages(mixed)[1:]
    assert [one["id"] for one in turn[0]["tool_calls"]] == ["c1", "c2"]
    assert [one["tool_call_id"] for one in turn[1:]] == ["c1", "c2"]
    assert messages([USER, call(1, id="fc_resp_9_1"), call(2, id="fc_resp_9_2"), result(1), result(2)])[1:] == turn
    of_two_responses = [USER, call(1, id="fc_resp_8_1"), result(1), call(2, id="fc_resp_9_1"), result(2)]
    assert [len(one.get("tool_calls", ())) for one in messages(of_two_responses)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([USER, "hi"], "input[1]"),
        ([USER, {"role": "robot", "content": "x"}], "input[1].role"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]}],
            "input[0].content[1]",
        ),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content[0]"),
        ([{"role": "user"}], "input[0].content"),
        ([USER, result(1)], "input[1].call_id"),
        ([USER, call(1), result(1, [{"type": "input_image"}])], "input[2].output[0]"),
        ([USER, {"type": "item_reference", "id": "x"}], "input[1].type"),
        ([USER, {"type": "computer_call"}], "input[1].type"),
        ([USER, call(1, namespace="n")], "input[1]"),
        ([USER, call(1), call(2), result(1), USER], "input[2]"),
        ([USER, {"type": "function_call", "call_id": "c", "name": "f"}], "input[1].arguments"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(items: list[Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(input=items).chat()
    assert caught.value.param == param and param in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tool_calls": 2}, "max_tool_calls"),
        ({"n": 2}, "n"),
        ({"logit_bias": {"a": 2}}, "logit_bias"),
        ({"instruction": "x"}, "instruction"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 3}, "input"),
        ({"model": 3}, "model"),
        ({"store": "yes"}, "store"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "stream": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "c"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "reasoning": {"effort": "high"}}, "tool_choice"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"context": "auto"}}, "reasoning.context"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"style": 1}}, "text.style"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"temperature": "warm"}, "temperature"),
        ({"max_output_tokens": 1.5}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_not_read_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(**fields).chat()
    assert caught.value.param == param and param in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"x"', b"\xff", b"null", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(FieldError) as caught:
        read_responses(body)
    assert caught.value.code == "invalid_json"


def test_x15_a_last_message_of_the_assistant_is_continued_unless_it_is_complete() -> None:
    def last(**more: Any) -> Any:
        return asked(input=[USER, said("Well,") | more]).chat().messages[-1].get("prefix")

    assert last() is last(status="incomplete") is None and last(status="completed") is False
    assert asked(input=[USER, said("x") | {"status": "completed"}], tools=[TOOL]).chat()
    for items in ([USER, said("Well,")], [USER, call(1), result(1), said("Well,")]):
        with pytest.raises(FieldError, match=r"input: .*beside tools"):
            asked(input=items, tools=[TOOL] if len(items) == 2 else []).chat()


def test_a_chain_of_responses_is_the_conversation_that_it_continues() -> None:
    """`previous_response_id` renders as sending all items again does, so that the prefix cache finds them."""
    first, outputs, second = [USER], [thought("t"), said("x"), call(1, id="fc_resp_1_2")], [result(1)]
    last = [said("it is done"), *[{"role": "user", "content": "thanks"}]]
    chained = asked(input=last[1:], tools=[TOOL], instructions="be kind", previous_response_id="resp_2")
    earlier = [("input of 1", first), ("output of 1", outputs), ("input of 2", second), ("output of 2", last[:1])]
    whole = asked(input=[*first, *outputs, *second, *last], tools=[TOOL], instructions="be kind")
    assert chained.chat(earlier) == whole.chat()
    with pytest.raises(FieldError, match=r"output of 1\[2\] calls a tool"):
        chained.chat(earlier[:2])


def test_hints_change_nothing() -> None:
    hints = {
        "metadata": {"a": "b"},
        "user": "u",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }
    assert asked(**hints, truncation="disabled", text={"verbosity": "medium"}).chat() == asked().chat()


def test_wishes_are_told_in_the_terms_of_chat_completions() -> None:
    schema = {"type": "object"}
    ask = asked(
        max_output_tokens=7,
        temperature=0.5,
        top_k=-1,
        stop=["x"],
        logit_bias={"7": 2},
        include_stop_str_in_output=True,
        cache_salt="mine",
        priority=3,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        tools=[TOOL | {"strict": True}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
    ).chat()
    assert ask.max_tokens == 7 and (ask.cache_salt, ask.priority) == ("mine", 3)
    extra = {"top_k": 0, "stop": ["x"], "logit_bias": {7: 2.0}, "include_stop_str": True}
    assert ask.sampling == {"temperature": 0.5, "logprobs": 2} | extra
    assert ask.tools and ask.tools[0]["function"]["strict"] is True and not ask.parallel_tool_calls
    assert ask.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert ask.response_format == {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@pytest.mark.parametrize(
    ("effort", "mode"), [("none", (False, None)), ("minimal", (True, "low")), ("medium", (True, "medium"))]
)
def test_effort_says_whether_to_think(effort: str, mode: tuple[bool, str | None]) -> None:
    ask = asked(reasoning={"effort": effort, "summary": "auto"}).chat()
    assert (ask.thinking, ask.reasoning_effort) == mode
    assert asked().chat().thinking is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_object", "x": 1}}}, "text.format.x"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "x": 1}}}, "text.format.x"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f", "x": 1}}, "tool_choice.x"),
        ({"input": [USER | {"name": "bob"}]}, "input[0].name"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}]}]},
            "input[0].content[0].x",
        ),
        ({"input": [USER, call(1, x=1), result(1)]}, "input[1].x"),
        ({"input": [USER, call(1), result(1) | {"x": 1}]}, "input[2].x"),
        ({"input": [thought("a") | {"encrypted_content": "abc"}, USER]}, "input[0].encrypted_content"),
    ],
)
def test_names_inside_are_refused_with_their_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(**fields).chat()
    assert caught.value.param == param


def test_wishes_without_effect_are_told() -> None:
    form = {"type": "json_schema", "name": "a", "description": "d", "strict": True, "schema": {}}
    told = asked(include=["reasoning.encrypted_content"], text={"format": form}).chat().notices
    assert [notice.partition(" ")[0] for notice in told] == [
        "text.format.description",
        "include=reasoning.encrypted_content",
    ]
