"""Clients of any dialect that go before their answer is there, and faults of ours on the way to it: nothing is left behind."""

from __future__ import annotations

import json
import socket

import pytest
from raw_dialect import until

from deepinfer.serving.http import chat, completions, messages, responses

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
PATHS = {
    "/v1/chat/completions": CHAT | {"max_tokens": 3000, "n": 2},
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3000, "n": 2},
    "/v1/messages": CHAT | {"max_tokens": 3000},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 3000},
}
ANSWERS = {"/v1/chat/completions": 2, "/v1/completions": 4, "/v1/messages": 1, "/v1/responses": 1}


def body_of(server, path: str, **more) -> dict:
    return PATHS[path] | {"model": server.model, "ignore_eos": True} | more


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_whoever_goes_leaves_nothing_behind(make_server, monkeypatch, path, stream):
    server = make_server("executor.step_time_s=0.02")
    line, admission = server.service.line, server.service.admission
    kept = []
    monkeypatch.setattr(responses.ResponseStore, "_put", lambda store, owner, row, *more: kept.append(row) or True)
    data = json.dumps(body_of(server, path, stream=stream)).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(head.encode() + data)
    until(lambda: line.num_steps >= 2)
    assert line.num_open == ANSWERS[path]
    client.close()
    until(lambda: not (line.num_open or admission.num_open or server.service.served.engine.has_work))
    server.stop()
    (told,) = [each for each in server.lines() if each["path"] == path]
    assert told["ended"] == "client_gone" and (told["status"] in (0, 200, 499) if stream else told["status"] == 499)
    assert not kept, "nobody has heard of this response"


@pytest.mark.parametrize("path", PATHS)
def test_a_fault_of_ours_leaves_no_answer_running(fake_server, monkeypatch, path):
    def broken(*args, **options):
        raise RuntimeError("a fault of ours")

    for module, name in ((chat, "ChatAnswer"), (completions, "CompletionAnswer"), (messages, "MessagesEvents")):
        monkeypatch.setattr(module, name, broken)
    monkeypatch.setattr(responses, "ResponsesEvents", broken)
    steps = fake_server.service.line.num_steps
    assert fake_server.post(path, body_of(fake_server, path)).status_code == 500
    assert fake_server.service.line.num_open == fake_server.service.admission.num_open == 0
    assert fake_server.service.line.num_steps == steps


@pytest.mark.parametrize("stream", [False, True])
def test_the_plans_number_of_answers_is_for_dialects_that_have_several(make_server, stream):
    server = make_server("sampling.n=2", "sampling.prompt_logprobs=1")
    for path, expected in {"/v1/messages": 1, "/v1/responses": 1, "/v1/chat/completions": 2}.items():
        asked = body_of(server, path, stream=stream) | {"max_output_tokens" if "resp" in path else "max_tokens": 5}
        asked.pop("n", None)
        before = server.service.served.engine.stats().finished["length"]
        reply = server.post(path, asked)
        assert reply.status_code == 200 and "error" not in reply.text.partition('"error":null')[0], reply.text
        assert server.service.served.engine.stats().finished["length"] - before == expected
