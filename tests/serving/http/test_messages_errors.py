"""/v1/messages refuses in Anthropic's form: a status, a type by its name, and a sentence that says where."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from deepinfer.serving.answers import ENGINE_LOST

USER = [{"role": "user", "content": "hi"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


@pytest.fixture(scope="module")
def client(fake_server: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=fake_server.url, api_key="none", max_retries=0)


def test_an_image_is_refused_with_its_place(fake_server: Any, client: anthropic.Anthropic) -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]},
    ]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.2\.content\.1 is an image") as caught:
        client.messages.create(model=fake_server.model, max_tokens=4, messages=messages)
    assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"model": "gpt-5"}, anthropic.NotFoundError, "gpt-5"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens=0"),
        ({"extra_body": {"temperature": 1e9}}, anthropic.BadRequestError, "temperature"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, anthropic.BadRequestError, "tokens"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "no tools"),
        (
            {
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "tool", "name": "g"},
            },
            anthropic.BadRequestError,
            "'g'",
        ),
        (
            {
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "any"},
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            anthropic.BadRequestError,  # X13: the error says how to switch thinking off
            '"type": "disabled"',
        ),
    ],
)
def test_refusals_have_the_type_that_the_sdk_knows(
    fake_server: Any, client: anthropic.Anthropic, fields: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    for stream in (False, True):
        with pytest.raises(error) as caught:
            client.messages.create(
                **{"model": fake_server.model, "max_tokens": 4, "messages": USER, "stream": stream} | fields
            )
        assert sentence in str(caught.value)


def test_headers_of_the_api_are_taken(fake_server: Any) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "anything-2030-01-01", "x-api-key": "any"}
    body = {"model": fake_server.model, "max_tokens": 2, "messages": USER}
    assert fake_server.post("/v1/messages?beta=true", body, headers=headers).status_code == 200
    assert httpx.get(f"{fake_server.url}/v1/messages").json()["type"] == "error"
    assert fake_server.post("/v1/messages/count_tokens", b"[]").json()["error"]["type"] == "invalid_request_error"


def test_max_tokens_is_cut_at_the_room_left_and_said(fake_server: Any) -> None:  # X22
    words = [{"role": "user", "content": "a " * 1500}]
    body = {"model": fake_server.model, "max_tokens": 10**6, "messages": words, "stop": None, "ignore_eos": True}
    del body["stop"]
    counted = fake_server.post("/v1/messages/count_tokens", {key: body[key] for key in ("model", "messages")}).json()
    with httpx.stream("POST", f"{fake_server.url}/v1/messages", json=body | {"stream": True}) as reply:
        notice = reply.headers["x-deepinfer-notices"]
    room = fake_server.service.max_model_len - counted["input_tokens"]
    assert f"max_tokens=1000000 becomes {room}" in notice
    response = {"model": fake_server.model, "input": words, "max_output_tokens": 10**6, "stream": True}
    with httpx.stream("POST", f"{fake_server.url}/v1/responses", json=response) as reply:
        assert reply.headers["x-deepinfer-notices"] == notice


def test_an_engine_that_fails_in_mid_stream_is_an_error_event(make_server: Any) -> None:
    server = make_server("executor.step_time_s=0.02")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    wish: dict[str, Any] = {
        "model": server.model,
        "max_tokens": 400,
        "messages": USER,
        "extra_body": {"ignore_eos": True},
    }
    with pytest.raises(anthropic.APIStatusError, match="gone") as caught, client.messages.stream(**wish) as stream:
        for number, _ in enumerate(stream):
            if number == 5:
                server.call(lambda: server.service.line.end_all("the engine is gone", ENGINE_LOST))
    assert caught.value.body["error"]["type"] == "overloaded_error"


def test_a_prompt_beyond_the_context_is_counted(fake_server: Any) -> None:
    body = {"model": fake_server.model, "messages": [{"role": "user", "content": "a " * 5000}]}
    counted = fake_server.post("/v1/messages/count_tokens", body)
    assert counted.status_code == 200 and counted.json()["input_tokens"] > fake_server.service.max_model_len


def test_the_sdk_lists_models(fake_server: Any, client: anthropic.Anthropic) -> None:
    (found,) = client.models.list()
    assert (found.id, found.type) == (fake_server.model, "model") and found.created_at.year >= 2024
    assert client.models.retrieve(fake_server.model) == found
    plain = httpx.get(f"{fake_server.url}/v1/models").json()
    assert plain["object"] == "list" and plain["data"][0]["object"] == "model"
