"""Responses in the making: cancelled, in the background, kept over a restart, apart by key. On the constant-step executor."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deepinfer.serving.answers import ENGINE_LOST
from deepinfer.serving.http.auth import new_key
from deepinfer.serving.http.response_store import ResponseStore
from tests.serving.dialect_streams import events, output_of


def client_of(server: Any, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def long_one(server: Any, **more: Any) -> dict[str, Any]:
    """A request that runs until somebody ends it."""
    return {"model": server.model, "input": "hi", "extra_body": {"ignore_eos": True}} | more


def until(happened: Callable[[], Any], within_s: float = 30.0) -> Any:
    for _ in range(round(within_s / 0.01)):
        if found := happened():
            return found
        time.sleep(0.01)
    raise AssertionError(f"it did not happen within {within_s} s")


def is_idle(server: Any) -> bool:
    return not (
        server.service.line.num_open or server.service.served.engine.has_work or server.service.admission.num_open
    )


@pytest.fixture
def slow_server(make_server: Any) -> Any:
    return make_server("executor.step_time_s=0.1")


def test_a_running_response_is_cancelled_within_a_step(slow_server: Any) -> None:
    client, engine = client_of(slow_server), slow_server.service.served.engine
    with client.responses.create(**long_one(slow_server), stream=True) as stream:
        first = next(iter(stream))
        until(lambda: slow_server.service.line.num_steps >= 2)
        assert client.responses.retrieve(first.response.id).status == "in_progress"
        before = engine.num_submitted
        cancelled = client.responses.cancel(first.response.id)
        *_, last = stream
    until(lambda: is_idle(slow_server))
    assert engine.num_submitted - before <= 2  # the step that ran, and one that was scheduled ahead
    assert cancelled.status == "cancelled" and last.response == cancelled
    assert client.responses.retrieve(cancelled.id) == cancelled == client.responses.cancel(cancelled.id)
    assert cancelled.usage and cancelled.usage.output_tokens > 0


def test_a_response_that_is_awaited_can_be_cancelled_and_deleted_by_others(slow_server: Any) -> None:
    client = client_of(slow_server)
    background = client.responses.create(**long_one(slow_server), background=True)
    assert background.status == "in_progress" and background.background
    assert client.responses.input_items.list(background.id).data[0].content[0].text == "hi"
    with pytest.raises(openai.BadRequestError, match="still being made"):
        client.responses.create(model=slow_server.model, input="and?", previous_response_id=background.id)
    client.responses.delete(background.id)
    until(lambda: is_idle(slow_server))
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(background.id)


def test_a_response_in_the_background_can_be_fetched_when_it_is_done(fake_server: Any) -> None:
    client = client_of(fake_server)
    begun = client.responses.create(**long_one(fake_server), background=True, max_output_tokens=20)
    done = until(lambda: (now := client.responses.retrieve(begun.id)).status != "in_progress" and now)
    assert done.status == "incomplete" and done.usage.output_tokens == 20 and done.output_text
    again = client.responses.create(
        model=fake_server.model, input="and?", previous_response_id=done.id, max_output_tokens=2
    )
    assert again.usage.input_tokens > done.usage.input_tokens + 20


def test_a_client_that_goes_ends_its_response_and_a_background_one_goes_on(slow_server: Any) -> None:
    client = client_of(slow_server)
    with client.responses.create(**long_one(slow_server), stream=True) as stream:
        first = next(iter(stream))
    until(lambda: is_idle(slow_server))
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.response.id)
    begun = client.responses.create(**long_one(slow_server), background=True)
    client.close()
    assert not is_idle(slow_server)
    assert client_of(slow_server).responses.cancel(begun.id).status == "cancelled"


def test_another_key_finds_nothing(make_server: Any, tmp_path: Path) -> None:
    made = {name: new_key(name) for name in ("alice", "bob")}
    (tmp_path / "keys.yaml").write_text("".join(entry for _, entry in made.values()))
    server = make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}", "executor.step_time_s=0.01")
    alice, bob = (client_of(server, made[name][0]) for name in ("alice", "bob"))
    kept = alice.responses.create(model=server.model, input="hi", max_output_tokens=2)
    running = alice.responses.create(**long_one(server), background=True)
    for response in (kept, running):
        for call in (
            bob.responses.retrieve,
            bob.responses.cancel,
            bob.responses.delete,
            bob.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
    with pytest.raises(openai.NotFoundError, match=kept.id):
        bob.responses.create(model=server.model, input="and?", previous_response_id=kept.id)
    assert alice.responses.retrieve(running.id).status == "in_progress"
    assert alice.responses.cancel(running.id).status == "cancelled"
    with pytest.raises(openai.AuthenticationError):
        client_of(server, "nobody").responses.retrieve(kept.id)


def test_responses_outlive_the_server_where_a_file_is_given(make_server: Any, tmp_path: Path) -> None:
    path = f"serving.responses_path={tmp_path / 'kept.sqlite'}"
    server = make_server(path)
    first = client_of(server).responses.create(model=server.model, input="hi", max_output_tokens=4)
    server.stop()
    client = client_of(make_server(path))
    assert client.responses.retrieve(first.id) == first
    assert client.responses.create(
        model=server.model, input="go on", previous_response_id=first.id, max_output_tokens=2
    )


def test_a_server_that_drains_ends_what_runs_in_the_background(make_server: Any, tmp_path: Path) -> None:
    path = f"serving.responses_path={tmp_path / 'kept.sqlite'}"
    server = make_server(path, "serving.drain_s=0.2", "executor.step_time_s=0.05")
    begun = client_of(server).responses.create(**long_one(server), background=True)
    server.stop()
    found = client_of(make_server(path)).responses.retrieve(begun.id)
    assert found.status == "failed" and found.error and "drain_s" in found.error.message


def test_an_engine_that_fails_ends_the_stream_with_a_failed_response(slow_server: Any) -> None:
    body = {"model": slow_server.model, "input": "hi", "ignore_eos": True, "stream": True}
    line = slow_server.service.line
    sent = b""
    with httpx.stream("POST", f"{slow_server.url}/v1/responses", json=body) as reply:
        for chunk in reply.iter_bytes():
            sent += chunk
            if sent.count(b"output_text.delta") > 2 and not is_idle(slow_server):
                slow_server.call(lambda: line.end_all("the engine is gone", ENGINE_LOST))
    told = events(sent)
    output_of(told)
    assert told[-1]["type"] == "response.failed" and told[-1]["response"]["error"]["message"] == "the engine is gone"


def test_a_whole_response_that_fails_is_an_error(slow_server: Any) -> None:
    line = slow_server.service.line
    with ThreadPoolExecutor(1) as aside:
        waiting = aside.submit(client_of(slow_server).responses.create, **long_one(slow_server))
        until(lambda: line.num_steps >= 2)
        slow_server.call(lambda: line.end_all("the engine is gone", ENGINE_LOST))
        with pytest.raises(openai.InternalServerError, match="the engine is gone") as caught:
            waiting.result(30)
    assert caught.value.status_code == 503


def test_input_too_large_to_be_kept_is_told(make_server: Any) -> None:
    server = make_server("serving.responses_max_item_bytes=200")
    client = client_of(server)
    made = client.responses.create(model=server.model, input="hi", max_output_tokens=2)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.APIStatusError, match="background") as caught:
        client.responses.create(**long_one(server), background=True)
    assert caught.value.status_code == 413
    until(lambda: is_idle(server))


@pytest.mark.parametrize(
    ("fields", "error", "sentence"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
        ({"previous_response_id": "resp_none"}, openai.NotFoundError, "previous_response_not_found"),
        ({"truncation": "auto"}, openai.BadRequestError, "unsupported_parameter"),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "unknown_parameter"),
        ({"temperature": 1e9}, openai.BadRequestError, "temperature"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"input": "a " * 5000}, openai.BadRequestError, "tokens"),
        ({"tool_choice": "required"}, openai.BadRequestError, "no tools"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            openai.BadRequestError,
            "content",
        ),
    ],
)
def test_refusals_say_what_and_where(
    fake_server: Any, fields: dict[str, Any], error: type[openai.APIStatusError], sentence: str
) -> None:
    for stream in (False, True):
        with pytest.raises(error) as caught:
            client_of(fake_server).responses.create(
                **{"model": fake_server.model, "input": "hi", "stream": stream} | fields
            )
        assert caught.value.code == sentence or sentence in caught.value.message


def test_pages_of_input_items(fake_server: Any) -> None:
    client = client_of(fake_server)
    said = [{"role": "user", "content": str(number)} for number in range(7)]
    made = client.responses.create(model=fake_server.model, input=said, max_output_tokens=2)
    found = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=3, order="asc")]
    assert found == [str(number) for number in range(7)]
    assert [item.content[0].text for item in client.responses.input_items.list(made.id)] == found[::-1]
    for query in ("limit=0", "limit=x", "order=up", "after=nothing"):
        assert httpx.get(f"{fake_server.url}/v1/responses/{made.id}/input_items?{query}").status_code == 400
    assert httpx.get(f"{fake_server.url}/v1/responses/{made.id}?stream=true").status_code == 400
    for odd in ("%00", "%ff%fe", "%ed%a0%80", "'; DROP TABLE responses", "x" * 5000):
        assert httpx.get(f"{fake_server.url}/v1/responses/{odd}").status_code == 404


def test_curl_reads_the_stream(fake_server: Any) -> None:
    body = json.dumps({"model": fake_server.model, "input": "hi", "stream": True, "max_output_tokens": 5})
    command = ["curl", "-sN", f"{fake_server.url}/v1/responses", "-H", "Content-Type: application/json", "-d", body]
    told = events(subprocess.run(command, capture_output=True, check=True, timeout=30).stdout)
    output_of(told)
    assert told[-1]["type"] in ("response.completed", "response.incomplete")


def test_a_full_disk_is_no_fault_of_the_request(fake_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(ResponseStore, "_replace", full)
    reply = fake_server.post("/v1/responses", {"input": "hi", "background": True, "max_output_tokens": 2})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_failed")
    assert "disk" in reply.json()["error"]["message"] and reply.headers["retry-after"] == "5"
