"""Responses that cannot be kept, or made: each says so, and none stays in progress. On the constant-step executor."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import openai
import pytest
from raw_dialect import until

from deepinfer.serving.http import responses_runs
from deepinfer.serving.http.response_store import ResponseStore
from deepinfer.serving.responses_events import ResponsesEvents

FOREVER = {"input": "hi", "background": True, "extra_body": {"ignore_eos": True}}


def client_of(server: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def is_idle(server: Any) -> bool:
    return not (server.service.line.num_open or server.service.admission.num_open)


def test_what_was_deleted_stays_deleted_however_late_its_end_is_noticed(
    make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_server = make_server("executor.step_time_s=0.1")
    keep, late = responses_runs.Run._keep, []

    async def keep_late(run: responses_runs.Run) -> None:
        """As where a slow reader has events to take first."""
        await asyncio.sleep(0.3)
        late.append(await keep(run))

    monkeypatch.setattr(responses_runs.Run, "_keep", keep_late)
    monkeypatch.setattr(responses_runs, "_PATIENCE_S", 0.0)
    client = client_of(slow_server)
    begun = client.responses.create(model=slow_server.model, **FOREVER)
    until(lambda: slow_server.service.line.num_steps >= 2)
    client.responses.delete(begun.id)
    until(lambda: late)
    until(lambda: is_idle(slow_server))
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(begun.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(begun.id)


def test_a_background_response_that_grows_too_large_has_failed_and_says_why(make_server: Any) -> None:
    server = make_server("serving.responses_max_item_bytes=3000")
    client = client_of(server)
    begun = client.responses.create(model=server.model, max_output_tokens=1500, **FOREVER)
    until(lambda: client.responses.retrieve(begun.id).status != "in_progress")
    found = client.responses.retrieve(begun.id)
    assert found.status == "failed" and found.error and "responses_max_item_bytes" in found.error.message
    assert found.output == [] and found.id == begun.id


def test_a_background_response_that_breaks_has_failed(
    fake_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> bytes:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(ResponsesEvents, "push", broken)
    client = client_of(fake_server)
    begun = client.responses.create(model=fake_server.model, **FOREVER)
    until(lambda: client.responses.retrieve(begun.id).status != "in_progress")
    found = client.responses.retrieve(begun.id)
    assert found.status == "failed" and found.error and found.error.code == "server_error"
    until(lambda: is_idle(fake_server))
    until(lambda: "a fault of ours" in capsys.readouterr().err)


def test_a_store_that_fails_is_said(fake_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    for name in ("_get", "_chain", "_delete"):
        monkeypatch.setattr(ResponseStore, name, broken)
    client = client_of(fake_server)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.InternalServerError, match="malformed") as caught:
            call("resp_1")
        assert caught.value.status_code == 503
    made = client.responses.create(model=fake_server.model, input="hi", max_output_tokens=2)
    assert made.store is False and made.output_text is not None
