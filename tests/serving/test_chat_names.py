"""Names inside a chat request: none is left out without a word."""

import json
from typing import Any

import pytest

from deepinfer.serving.chat_request import chat_call
from deepinfer.serving.fields import FieldError

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"name": "a", "schema": {"type": "object"}}


def asked(**fields: Any) -> Any:
    return chat_call(json.dumps({"messages": [USER]} | fields).encode()).ask


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER | {"temperature": 1}]}, "messages[0].temperature"),
        ({"messages": [USER, {"role": "assistant", "content": "a", "reasoning": "b"}]}, "messages[1].reasoning"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]},
            "messages[0].content[0].x",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL | {"x": 1}]}]}, "messages[1].tool_calls[0].x"),
        ({"messages": [USER, {"role": "assistant", "content": "", "audio": {"id": "a"}}]}, "messages[1].audio"),
        ({"tools": [TOOL | {"x": 1}]}, "tools[0].x"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parametres": {}}}]},
            "tools[0].function.parametres",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
            "tool_choice.function.x",
        ),
        ({"response_format": {"type": "json_object", "x": 1}}, "response_format.x"),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA | {"x": 1}}},
            "response_format.json_schema.x",
        ),
    ],
)
def test_a_name_that_nobody_reads_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        asked(**fields)
    assert caught.value.param == param


def test_what_clients_send_back_of_an_answer_is_taken() -> None:
    chunk_of_stream = {"index": 0} | CALL
    answer = {"role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None}
    answer |= {"annotations": [], "tool_calls": [chunk_of_stream], "reasoning_content": "so"}
    result = {"role": "tool", "tool_call_id": "c", "name": "f", "content": "done"}
    assert asked(messages=[USER, answer, result]).notices == ()


def test_names_without_effect_are_told() -> None:
    told = asked(
        messages=[USER | {"name": "bob"}],
        response_format={"type": "json_schema", "json_schema": SCHEMA | {"description": "d", "strict": True}},
    ).notices
    assert [notice.partition(" ")[0] for notice in told] == [
        "messages[0].name",
        "response_format.json_schema.description",
    ]
