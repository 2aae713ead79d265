"""Refusals that clients act upon: prompts that are too long and grammars that are wrong, by field and code."""

from __future__ import annotations

from test_chat_refusals import HELLO, refused


def test_x21_a_prompt_that_is_too_long_is_refused_with_the_numbers(server):
    long = {"messages": [{"role": "user", "content": "word " * 5000}], "max_tokens": 510}
    for path, place, body in (
        ("/v1/chat/completions", "messages", long),
        ("/v1/completions", "prompt", {"prompt": "word " * 5000}),
        ("/v1/completions", "prompt", {"prompt": "word " * 500_000}),
        ("/v1/responses", "input", {"input": "word " * 5000}),
    ):
        error = refused(server, path, body)
        assert (error["param"], error["code"]) == (place, "context_length_exceeded")
        assert "4,096" in error["message"] and "max_tokens" not in error["message"]


def test_what_vllm_has_as_default_is_taken_and_equal_answers_are_told(server):
    reply = server.post("/v1/chat/completions", {**HELLO, "skip_special_tokens": True, "n": 2, "temperature": 0})
    assert reply.status_code == 200, reply.text
    assert "the same answer 2 times" in reply.headers["x-deepinfer-notices"]
    error = refused(server, "/v1/chat/completions", {**HELLO, "skip_special_tokens": False})
    assert error["param"] == "skip_special_tokens"
    reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 2, "temperature": 0})
    assert "the same answer 2 times" in reply.headers["x-deepinfer-notices"]


def test_g02_g03_g07_bad_grammars_are_refused_and_the_server_lives(server):
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "objekt"}}}
    names = {"type": "object", "propertyNames": {"pattern": "^c"}}
    bad_tool = {"type": "function", "function": {"name": "w", "strict": True, "parameters": names}}
    for extra in (
        {"response_format": schema},
        {"guided_regex": "["},
        {"guided_regex": "\\q"},
        {"guided_grammar": "root ::= ("},
        {"guided_choice": []},
        {"tools": [bad_tool]},
    ):
        for stream in (False, True):  # a stream that has not begun is refused like any other
            error = refused(server, "/v1/chat/completions", {**HELLO, **extra, "stream": stream})
            assert error["param"] == next(iter(extra)) and error["code"] in ("invalid_grammar", "invalid_value"), error
    for stream in (False, True):
        error = refused(server, "/v1/completions", {"prompt": "a", "guided_regex": "[", "stream": stream})
        assert (error["param"], error["code"]) == ("guided_regex", "invalid_grammar")
    assert server.post("/v1/chat/completions", HELLO).status_code == 200
