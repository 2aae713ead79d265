"""Routes that are no dialect's: health, models, plan, tokens; and how what is not there is told."""

from __future__ import annotations

import json
import threading

import httpx
import pytest
from raw_dialect import read_events, until

import deepinfer
from deepinfer.serving.http import tokens


def test_health_live_and_version(fake_server):
    status, body = fake_server.health()
    assert (status, body["status"]) == (200, "ready")
    assert httpx.get(f"{fake_server.url}/live").status_code == 200
    assert httpx.get(f"{fake_server.url}/version").json() == {"version": deepinfer.__version__}


def test_health_generate_computes_a_token(fake_server):
    steps = fake_server.service.line.num_steps
    reply = httpx.get(f"{fake_server.url}/health_generate")
    assert reply.status_code == 200 and reply.json()["ms"] > 0
    assert fake_server.service.line.num_steps > steps


def test_models_and_one_model(fake_server):
    listed = httpx.get(f"{fake_server.url}/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["v41_tiny"]
    assert listed["data"][0]["max_model_len"] == 4096
    assert httpx.get(f"{fake_server.url}/v1/models/v41_tiny").json() == listed["data"][0]
    unknown = httpx.get(f"{fake_server.url}/v1/models/gpt-5/x")
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"


def test_names_of_the_model_are_a_setting(make_server):
    server = make_server("serving.model_names=[chat, fast]")
    assert [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["chat", "fast"]
    assert (server.service.model(None), server.service.model("fast")) == ("chat", "fast")


def test_the_plan_is_shown_as_it_is(fake_server):
    shown = httpx.get(f"{fake_server.url}/v1/plan").json()
    assert shown == json.loads(fake_server.plan.to_json())


def test_text_to_tokens_and_back(server):
    told = server.post("/tokenize", {"prompt": "What is 1 + 1?", "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) and told["max_model_len"] == 4096
    back = server.post("/detokenize", {"tokens": told["tokens"], "skip_special_tokens": True})
    assert back.json() == {"prompt": "What is 1 + 1?"}
    plain = server.post("/tokenize", {"prompt": "What is 1 + 1?", "add_special_tokens": False}).json()
    assert plain["tokens"] == told["tokens"][1:]
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}).json()["tokens"]
    assert "<｜Assistant｜>" in server.post("/detokenize", {"tokens": chat}).json()["prompt"]


def test_large_texts_are_read_and_told_beside_the_loop(server, monkeypatch):
    threads = []

    def noting(function):
        def called(*args, **more):
            threads.append(threading.current_thread().name)
            return function(*args, **more)

        return called

    monkeypatch.setattr(tokens, "decoded", noting(tokens.decoded))
    tokenizer = server.service.tokenizer
    monkeypatch.setattr(tokenizer, "decode", noting(tokenizer.decode))
    told = server.post("/tokenize", {"prompt": "one two three " * 1500, "return_token_strs": True}).json()
    assert len(told["token_strs"]) == told["count"] > 4000
    back = server.post("/detokenize", {"tokens": told["tokens"], "skip_special_tokens": True})
    assert back.json()["prompt"] == "one two three " * 1500
    assert len(threads) > 4000 and all(name.startswith("render") for name in threads)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": 1}),
        ("/tokenize", {"prompt": "a", "nope": 1}),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "a"}]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/detokenize", {"tokens": "abc"}),
        ("/detokenize", b"\xff\xfe"),
        ("/detokenize", b'{"tokens": [' + b"[" * 50_000),
        ("/tokenize", b'{"prompt": "\\ud800"}'),
        ("/raw", b""),
    ],
)
def test_bodies_that_cannot_be_read_are_400_with_a_sentence(server, path, body):
    reply = server.post(path, body)
    assert reply.status_code == 400 and len(reply.json()["error"]["message"]) > 10


def test_another_model_is_404_everywhere(fake_server):
    assert fake_server.post("/tokenize", {"model": "gpt-5", "prompt": "a"}).status_code == 404


def test_what_is_not_there_is_told_in_the_dialect_of_the_path(fake_server):
    openai = httpx.get(f"{fake_server.url}/v1/nothing")
    assert openai.status_code == 404 and openai.json()["error"]["type"] == "not_found_error"
    anthropic = httpx.get(f"{fake_server.url}/v1/messages/nothing/here")
    assert anthropic.status_code == 404 and anthropic.json()["type"] == "error"
    method = httpx.delete(f"{fake_server.url}/health")
    assert method.status_code == 405 and "GET" in method.headers["allow"].split(", ")
    assert "DELETE" in method.json()["error"]["message"]
    kind = fake_server.post("/tokenize", b"prompt=a", headers={"content-type": "application/x-www-form-urlencoded"})
    assert kind.status_code == 415 and "application/json" in kind.json()["error"]["message"]
    packed = fake_server.post("/tokenize", b"{}", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415


def test_answers_whole_and_streamed_are_the_same(fake_server):
    asked = {"prompt": [3, 4, 5], "max_tokens": 20, "n": 3}
    whole = fake_server.post("/raw", asked).json()["token_ids"]
    assert [len(each) for each in whole] == [20] * 3
    reply = fake_server.post("/raw", asked | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    streamed = [[], [], []]
    for event in read_events(reply.text):
        streamed[event["index"]] += event["token_ids"]
    assert streamed == whole


def test_a_step_wakes_the_loop_once_whatever_it_brings(make_server):
    server = make_server()
    posts, line, thread = [], server.service.line, server.service.line._thread
    post = thread._post
    thread._post = lambda function, *arguments: posts.append(function) or post(function, *arguments)
    reply = server.post("/raw", {"n": 25, "max_tokens": 30}).json()
    assert sum(map(len, reply["token_ids"])) == 750
    delivered = [each for each in posts if each == line.delivered]
    assert len(delivered) == line.num_steps <= 32  # of prefill, and one for each token of all answers


def test_no_other_site_may_ask_unless_it_is_told_so(make_server):
    server = make_server("serving.cors_origins=[https://good.example]")
    for origin, status in (
        ("https://evil.example", 403),
        ("null", 403),
        ("https://good.example", 200),
        (server.url, 200),
    ):
        reply = server.post("/raw", {}, headers={"origin": origin})
        assert reply.status_code == status, origin
        assert reply.headers.get("access-control-allow-origin") == (origin if "good" in origin else None)


def test_a_fault_of_ours_is_500_without_its_text(make_server, capfd):
    def broken():
        raise KeyError("a secret of the server's")

    server = make_server()
    server.service.json = lambda value: broken()
    reply = httpx.get(f"{server.url}/version")
    assert reply.status_code == 500 and reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    said = []
    until(lambda: said.append(capfd.readouterr().err) or "secret" in "".join(said))
