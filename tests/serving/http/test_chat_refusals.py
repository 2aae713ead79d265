"""What /v1/chat/completions and /v1/completions refuse, by name, and what they take without a word to say."""

from __future__ import annotations

import json
import math

import pytest

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "a", "type": "function", "function": {"name": "w", "arguments": "{}"}}
THINKING = {"thinking": {"type": "enabled"}}
HI = {"role": "user", "content": "Hello"}
HUGE = {"a": 10**400}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


def refused(server, path: str, body) -> dict:
    reply = server.post(path, body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    return error


# what is asked besides → the field that the answer names
SAMPLING = {
    "M12 seed of 64 bits": ({"seed": 2**63}, "seed"),
    "M12 seed far below": ({"seed": -(2**63) - 1}, "seed"),
    "M12 seed of 100 bits": ({"seed": 2**100}, "seed"),
    "M12 seed as text": ({"seed": "100"}, "seed"),
    "M12 seed true": ({"seed": True}, "seed"),
    "M12 seed -1": ({"seed": -1}, "seed"),
    "M04 top_p 0": ({"top_p": 0.0}, "top_p"),
    "M06 repetition_penalty 0": ({"repetition_penalty": 0.0}, "repetition_penalty"),
    "M05 a bias beyond the vocabulary": ({"logit_bias": {"3584": 5}}, "logit_bias"),
    "M05 a bias below it": ({"logit_bias": {"-1": 5}}, "logit_bias"),
    "M05 a bias of no token": ({"logit_bias": {"abc": 5}}, "logit_bias"),
    "a bias of zeros first": ({"logit_bias": {"0" * 19 + "99": 5}}, "logit_bias"),
    "a bias of many digits": ({"logit_bias": {"9" * 5000: 5}}, "logit_bias"),
    "a bias too strong": ({"logit_bias": {"5": 101}}, "logit_bias"),
    "M13 n 0": ({"n": 0}, "n"),
    "n too large": ({"n": 1000}, "n"),
    "min_p": ({"min_p": 1.5}, "min_p"),
    "top_k": ({"top_k": -2}, "top_k"),
    "presence_penalty": ({"presence_penalty": 3}, "presence_penalty"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "min_tokens": ({"min_tokens": 3}, "min_tokens"),
    "an empty stop": ({"stop": [""]}, "stop"),
    "stop of numbers": ({"stop": [1]}, "stop[0]"),
    "stop_token_ids": ({"stop_token_ids": [99999]}, "stop_token_ids"),
    "unknown": ({"tempreature": 1}, "tempreature"),
    "best_of": ({"best_of": 2}, "best_of"),
    "beams": ({"use_beam_search": True}, "use_beam_search"),
    "stream_options alone": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "two forms": ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
    "priority": ({"priority": "high"}, "priority"),
    "salt": ({"cache_salt": "x" * 300}, "cache_salt"),
}


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_that_cannot_be_is_refused_by_name_on_both_paths(fake_server, name):
    extra, param = SAMPLING[name]
    for path, body in (("/v1/chat/completions", HELLO), ("/v1/completions", {"prompt": "Hello", "max_tokens": 2})):
        assert refused(fake_server, path, {**body, **extra})["param"] == param


CHAT = {
    "no messages": ({"messages": []}, "messages"),
    "messages missing": ({"messages": None}, "messages"),
    "a message that is a text": ({"messages": ["hi"]}, "messages[0]"),
    "a role": ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0]"),
    "an image": (
        {"messages": [HI, {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
        "messages[1].content[1]",
    ),
    "sound": ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
    "a result of nothing": ({"messages": [HI, {"role": "tool", "tool_call_id": "z", "content": "x"}]}, "messages[1]"),
    "a call without result": (
        {"tools": [TOOL], "messages": [HI, {"role": "assistant", "tool_calls": [CALL]}, HI]},
        "messages[1]",
    ),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "logprobs as a number": ({"logprobs": 2}, "logprobs"),
    "functions": ({"functions": [{}]}, "functions"),
    "audio": ({"modalities": ["text", "audio"]}, "modalities"),
    "kept": ({"store": True}, "store"),
    "temperature 3": ({"temperature": 3}, "temperature"),
    "X13 a forced call and thinking": ({"tools": [TOOL], "tool_choice": "required", **THINKING}, "tool_choice"),
    "X13 and effort": ({"tools": [TOOL], "tool_choice": "required", "reasoning_effort": "low"}, "tool_choice"),
    "a choice of no tool": ({"tool_choice": "required"}, "tool_choice"),
    "a tool that is not there": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
    ),
    "an unknown effort": ({"reasoning_effort": "much"}, "reasoning_effort"),
    "effort against thinking": ({"reasoning_effort": "none", **THINKING}, "reasoning_effort"),
    "thinking of another kind": ({"thinking": {"type": "loud"}}, "thinking.type"),
    "thinking twice": ({"chat_template_kwargs": {"thinking": False}, **THINKING}, "chat_template_kwargs.thinking"),
    "a template option": ({"chat_template_kwargs": {"tone": "dry"}}, "chat_template_kwargs"),
    "a format": ({"response_format": {"type": "yaml"}}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    "numbers beyond JSON": ({"tools": [{"type": "function", "function": {"name": "w", "parameters": HUGE}}]}, None),
    "two limits": ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAT)
def test_chats_that_cannot_be_are_refused_by_place(fake_server, name):
    extra, param = CHAT[name]
    assert refused(fake_server, "/v1/chat/completions", {**HELLO, **extra})["param"] == param


def test_x13_the_error_says_how_to_turn_thinking_off(fake_server):
    asked = {**HELLO, "tools": [TOOL], "tool_choice": "required", **THINKING}
    message = refused(fake_server, "/v1/chat/completions", asked)["message"]
    assert '{"thinking": {"type": "disabled"}}' in message and 'reasoning_effort="none"' in message


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_m01_m02_what_is_no_number_is_refused_in_clean_json(fake_server, field, value):
    body = json.dumps(HELLO)[:-1] + f', "{field}": {value}}}'
    reply = fake_server.post("/v1/chat/completions", body.encode())
    assert reply.status_code == 400
    told = json.loads(reply.text, parse_constant=lambda word: pytest.fail(f"the body holds {word}"))
    assert told["error"]["code"] == "invalid_json"


def test_m03_m04_numbers_of_an_answer_are_finite(server):
    for extra in (
        {"temperature": 1e-12},
        {"temperature": 1e-4},
        {"top_p": 1.0},
        {"top_p": 1e-6},
        {"guided_choice": ["a"]},
    ):
        body = {"prompt": "Once upon", "max_tokens": 3, "logprobs": 3, "echo": True, **extra}
        text = server.post("/v1/completions", body).text
        told = json.loads(text, parse_constant=lambda word: pytest.fail(f"the body holds {word}"))["choices"][0][
            "logprobs"
        ]
        assert all(math.isfinite(value) and value <= 0 for value in told["token_logprobs"])


def test_m05_a_bad_request_costs_its_neighbours_nothing(fake_server):
    good = {"prompt": ["a", "b"], "max_tokens": 4, "seed": 1}
    before = fake_server.post("/v1/completions", good).json()["choices"]
    refused(fake_server, "/v1/completions", {**good, "logit_bias": {"3584": 5}})
    assert fake_server.post("/v1/completions", good).json()["choices"] == before


def test_m07_penalties_and_bias_act(server):
    body = {"prompt": "la la la la la la", "max_tokens": 12}
    plain = server.post("/v1/completions", body).json()["choices"][0]["text"]
    for extra in ({"repetition_penalty": 1.8}, {"presence_penalty": 2}, {"frequency_penalty": 2}):
        assert server.post("/v1/completions", {**body, **extra}).json()["choices"][0]["text"] != plain, extra
    token = server.post("/tokenize", {"prompt": "zoo", "add_special_tokens": False}).json()["tokens"][0]
    forced = server.post("/v1/completions", {**body, "logit_bias": {str(token): 100}}).json()["choices"][0]["text"]
    assert forced.startswith(server.post("/detokenize", {"tokens": [token]}).json()["prompt"])


@pytest.mark.parametrize(
    "extra",
    [
        {
            "user": "me",
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "safety_identifier": "x",
            "prompt_cache_key": "k",
        },
        {"store": False, "modalities": ["text"], "functions": None, "best_of": 1, "logprobs": None, "seed": None},
        {"stop": None, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "top_k": -1},
        {
            "seed": 2**63 - 1,
            "logit_bias": {},
            "stop": "x",
            "parallel_tool_calls": True,
            "priority": 3,
            "cache_salt": "mine",
        },
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none", "include_reasoning": True},
    ],
)
def test_what_changes_nothing_is_taken(fake_server, extra):
    reply = fake_server.post("/v1/chat/completions", {**HELLO, **extra})
    assert reply.status_code == 200 and "x-deepinfer-notices" not in reply.headers, reply.text


def test_x14_x16_histories_of_agents_are_taken(fake_server):
    """Thoughts are missing, the calls of a turn come one by one, results in another order; developers are systems."""
    second = {**CALL, "id": "b"}
    ends = [{"role": "tool", "tool_call_id": name, "content": "ok"} for name in ("b", "a")]
    apart = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [second]},
    ]
    start = [{"role": "developer", "content": "Be kind."}, *HELLO["messages"]]
    together = [{"role": "assistant", "tool_calls": [CALL, second]}]
    asked = {**HELLO, "tools": [TOOL], **THINKING}
    counts = set()
    for turn in (apart, together):
        reply = fake_server.post("/v1/chat/completions", {**asked, "messages": [*start, *turn, *ends]})
        assert reply.status_code == 200, reply.text
        counts.add(reply.json()["usage"]["prompt_tokens"])
    assert len(counts) == 1, "both are the same conversation"


def test_x22_max_tokens_is_cut_at_the_room_left_and_said(server):
    asked = {
        "messages": [{"role": "user", "content": "word " * 20}],
        "max_tokens": 100_000,
        "stop": [" "],
        "min_tokens": 0,
    }
    reply = server.post("/v1/chat/completions", asked)
    (notice,) = json.loads(reply.headers["x-deepinfer-notices"])
    room = 4096 - reply.json()["usage"]["prompt_tokens"]
    assert notice.startswith(f"max_tokens=100000 becomes {room}:")


def test_a_client_that_chooses_a_temperature_has_it_and_is_told(server):
    asked = {**HELLO, **THINKING, "temperature": 0.0}
    reply = server.post("/v1/chat/completions", asked)
    assert "temperature=0 stays as asked" in json.loads(reply.headers["x-deepinfer-notices"])[0]
    assert reply.json()["notices"] == json.loads(reply.headers["x-deepinfer-notices"])
    assert reply.json()["choices"] == server.post("/v1/chat/completions", asked).json()["choices"]
