"""What a key is charged for, what it gets back, and what counts as one request."""

from __future__ import annotations

import json

import httpx
import pytest
from raw_dialect import until
from test_disconnect import open_request

from deepinfer.serving.http.auth import new_key

SECRET, ENTRY = new_key("alice")
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture
def keyed(make_server, tmp_path):
    """keyed({"max_streams": 2}, *overrides) → a server whose only key has these limits."""

    def make(limits, *overrides):
        (tmp_path / "keys.yaml").write_text(ENTRY + f"  limits: {json.dumps(limits)}\n")
        return make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}", *overrides)

    return make


def usage(server):
    return server.service.keys.find(SECRET).usage


def test_the_prompts_of_a_completion_are_one_request(keyed):
    server = keyed({"max_streams": 1, "requests_per_min": 2}, "serving.max_streams=1", "serving.max_waiting=1")
    body = {"model": server.model, "prompt": [[5, 6], [7, 8], [9, 10]], "max_tokens": 3}
    for _ in range(2):
        reply = server.post("/v1/completions", body, headers=BEARER)
        assert reply.status_code == 200 and len(reply.json()["choices"]) == 3
        assert server.service.admission.num_open == usage(server).num_open == 0
    assert server.post("/v1/completions", body, headers=BEARER).json()["error"]["code"] == "key_requests_per_min"


def test_what_comes_to_nothing_is_given_back(keyed):
    server = keyed({"requests_per_min": 2, "tokens_per_min": 1000})
    for _ in range(4):
        refused = server.post("/raw", {"prompt": [10**6] * 400}, headers=BEARER)
        assert refused.status_code == 400 and "vocabulary" in refused.json()["error"]["message"]
    assert server.post("/raw", {"prompt": [1] * 900}, headers=BEARER).status_code == 200


def test_a_shorter_answer_is_told(keyed):
    server = keyed({"max_tokens": 3})
    cut = server.post("/raw", {"max_tokens": 5}, headers=BEARER)
    (notice,) = json.loads(cut.headers["x-deepinfer-notices"])
    assert "3 tokens" in notice and "max_tokens" in notice
    assert "x-deepinfer-notices" not in server.post("/raw", {"max_tokens": 3}, headers=BEARER).headers
    body = {"model": server.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "user": "u"}
    told = json.loads(server.post("/v1/chat/completions", body, headers=BEARER).headers["x-deepinfer-notices"])
    assert notice in told


def test_nobody_goes_first_without_leave(keyed):
    server = keyed({})
    body = {"model": server.model, "prompt": [5, 6], "max_tokens": 1}
    refused = server.post("/v1/completions", body | {"priority": 1}, headers=BEARER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_priority")
    assert server.post("/v1/completions", body | {"priority": -5}, headers=BEARER).status_code == 200
    server = keyed({"max_priority": 7})
    assert server.post("/v1/completions", body | {"priority": 7}, headers=BEARER).status_code == 200
    assert server.post("/v1/completions", body | {"priority": 8}, headers=BEARER).status_code == 403


def test_work_without_the_engine_is_counted_too(keyed):
    server = keyed({"requests_per_min": 2})
    for _ in range(2):
        assert server.post("/detokenize", {"tokens": [5]}, headers=BEARER).status_code == 200
    body = {"model": server.model, "messages": [{"role": "user", "content": "hi"}]}
    for path, asked in (("/tokenize", {"prompt": "hi"}), ("/v1/messages/count_tokens", body)):
        refused = server.post(path, asked, headers=BEARER)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert httpx.get(f"{server.url}/v1/models", headers=BEARER).status_code == 200


def test_the_bodies_of_all_requests_have_a_limit_together(make_server):
    server = make_server("serving.max_held_bytes=5000", "executor.step_time_s=0.05")
    long = {"prompt": [1] * 1200, "max_tokens": 2000, "stream": True}  # some 3,600 bytes
    running = open_request(server, long)
    running.recv(10)
    refused = server.post("/raw", long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bodies_full")
    assert server.post("/raw", {"max_tokens": 1}).status_code == 200
    running.close()
    until(lambda: not server.service.held_bytes)
    assert server.post("/raw", long | {"max_tokens": 1}).status_code == 200


def test_who_is_being_computed_is_not_said_to_wait(make_server):
    server = make_server("executor.step_time_s=2", in_process=False)
    line, asked = server.service.line, open_request(server, {"max_tokens": 1})
    until(lambda: line.num_running)
    assert (line.num_steps, line.num_waiting) == (0, 0)  # the step that computes its prompt still runs
    asked.close()
