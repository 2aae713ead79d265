"""Requests that nobody should send: valid ones of every route with one to three things made wrong, drawn from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOL = {"name": "add", "description": "adds", "parameters": SCHEMA}
USER: list[dict[str, Any]] = [{"role": "user", "content": "What is 1 + 1?"}]
VALID: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 3}),
    (
        "/v1/chat/completions",
        {"messages": USER, "max_tokens": 3, "stream": True, "n": 2, "logprobs": True, "top_logprobs": 2},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
            ],
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "auto",
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": USER,
            "max_tokens": 12,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        },
    ),
    (
        "/v1/completions",
        {"prompt": "Once", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "seed": 1},
    ),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 3, "logprobs": 2, "echo": True, "logit_bias": {"5": 1.5}}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "stream": True, "n": 2, "presence_penalty": 0.1}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16, "store": False}),
    (
        "/v1/responses",
        {
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "instructions": "Be brief.",
            "tools": [{"type": "function", **TOOL}],
            "max_output_tokens": 16,
            "stream": True,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "text"}},
        },
    ),
    ("/v1/messages", {"messages": USER, "max_tokens": 3}),
    (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
            ],
            "tools": [{"name": "add", "description": "adds", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "stop_sequences": ["x"],
            "max_tokens": 3,
            "stream": True,
        },
    ),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/tokenize", {"prompt": "Once upon"}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
)
GETS = (
    "/v1/models",
    "/v1/plan",
    "/live",
    "/health",
    "/version",
    "/metrics",
    "/",
    "/v1/responses/resp_x",
    "/openapi.json",
)
WEIRD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**64,
        -(2**70),
        10**400,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        " ",
        "x",
        "\x00",
        "\ud800",
        "é" * 50,
        "a" * 5000,
        "<｜end▁of▁sentence｜>",
        "</think>",
        "<｜DSML｜invoke",
        "../../etc",
        "{}",
    ),
    *([], {}, [None], [[]], {"": None}, [1, "a"], {"type": "image_url"}, {"type": "text"}, {"$ref": "#"}, [{}]),
    *({"type": "object", "properties": {"a": {"$ref": "#"}}}, {"type": "json_object"}, "auto", "required", "none"),
)
DEEP = "deep down"  # stands in for a value that is nested deeply
KEYS = (
    *("n", "best_of", "max_tokens", "stop", "logprobs", "stream", "tools", "tool_choice", "model", "thinking", "seed"),
    *("user", "response_format", "logit_bias", "cache_salt", "top_k", "min_p", "metadata", "previous_response_id"),
    *("background", "x"),
)


class Mutant(Struct):
    """One request. `headers` are whole lines."""

    method: str
    path: str
    body: bytes
    headers: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.headers!r} {self.body[:600]!r}"


def mutants(number: int, seed: int, model: str) -> Iterator[Mutant]:
    """As many as asked, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(number):
        path, body = rng.choice(VALID)
        body = copy.deepcopy(body) | ({"model": model} if rng.random() < 0.9 else {})
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _change(body, rng)
        data = json.dumps(body, ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")
        data = data.replace(json.dumps(DEEP).encode(), _deep(rng))
        yield _around(Mutant("POST", path, data), rng)


def _deep(rng: random.Random) -> bytes:
    """A value in a value in a value …, deeper than Python's own encoder goes."""
    begin, end = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = rng.choice((40, 1500, 20_000))
    return begin * depth + b"1" + end * depth


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(items):
        yield value, key
        yield from _places(below)


def _change(body: dict[str, Any], rng: random.Random) -> None:
    places = list(_places(body))
    container, key = rng.choice(places) if places else (body, "x")
    what = rng.random()
    if what < 0.55 and places:
        container[key] = copy.deepcopy(rng.choice(WEIRD))
    elif what < 0.7 and places:
        del container[key]
    elif what < 0.8 and places:
        container[key] = [copy.deepcopy(container[key])] * rng.choice((2, 50))
    elif what < 0.85:
        container[key] = DEEP
    else:
        body[rng.choice(KEYS)] = copy.deepcopy(rng.choice(WEIRD))


def _around(mutant: Mutant, rng: random.Random) -> Mutant:
    """Now and then bytes, headers, method or path are wrong too."""
    what, body = rng.random(), mutant.body
    if what < 0.05:
        mutant.body = body[: rng.randrange(len(body) + 1)]
    elif what < 0.1:
        place = rng.randrange(len(body))
        mutant.body = body[:place] + rng.randbytes(rng.choice((1, 2, 9))) + body[place + 1 :]
    elif what < 0.13:
        mutant.body = rng.choice(
            (b"", b"null", b"[]", b"1", b'"x"', b"\xef\xbb\xbf" + body, body + body, b"[" * 100_000)
        )
    elif what < 0.16:
        mutant.body = body[:-1] + b', "max_tokens": 2, "max_tokens": 3}'
    elif what < 0.2:
        mutant.headers = rng.choice(("accept-encoding: zstd\r\n", "content-encoding: gzip\r\n", "x-request-id: \xe9\r\n",
                                     "authorization: Basic x\r\n", "traceparent: zz\r\n", "x-api-key: 1\r\n"))  # fmt: skip
    elif what < 0.23:
        mutant.method = rng.choice(("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"))
        mutant.body = b"" if mutant.method in ("GET", "HEAD") else body
    elif what < 0.26:
        mutant.path = rng.choice(
            (mutant.path + "/", mutant.path.upper(), "/" + mutant.path, mutant.path + "?x=%ff", "/%00")
        )
    elif what < 0.3:
        mutant = Mutant("GET", rng.choice(GETS) + rng.choice(("", "?after=x&limit=-1", "/%2e%2e", "?stream=true")), b"")
    return mutant
