"""/v1/completions as OpenAI's own client uses it, and both older paths as curl does."""

from __future__ import annotations

import json
import shutil
import subprocess

import openai
import pytest
from openai import OpenAI

ONCE, CAT = "Once upon a time", "The cat sat"


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ids_of(server, text: str) -> list[int]:
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_every_form_of_a_prompt(client, server):
    asked = {"model": server.model, "max_tokens": 5}
    alone = [client.completions.create(**asked, prompt=prompt).choices[0].text for prompt in (ONCE, CAT)]
    forms = [[ONCE, CAT], [ids_of(server, ONCE), ids_of(server, CAT)]]
    for prompt in forms:
        done = client.completions.create(**asked, prompt=prompt)
        assert [choice.text for choice in done.choices] == alone and [choice.index for choice in done.choices] == [0, 1]
        assert done.usage.completion_tokens == 10 and done.usage.prompt_tokens == len(
            ids_of(server, ONCE) + ids_of(server, CAT)
        )
    assert client.completions.create(**asked, prompt=ids_of(server, ONCE)).choices[0].text == alone[0]
    assert client.completions.create(model=server.model, prompt=ONCE).usage.completion_tokens == 16


def test_m13_some_answers_to_some_prompts_streamed_and_not(client, server):
    asked = {"model": server.model, "prompt": [ONCE, CAT], "n": 2, "seed": 3, "temperature": 1.0, "max_tokens": 8}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3] and len(
        {choice.text for choice in whole.choices}
    ) == 4
    texts, reasons, usage = ["", "", "", ""], [None] * 4, None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices] and reasons == ["length"] * 4
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 32)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_and_log_probabilities(client, server, stream):
    asked = {"model": server.model, "prompt": ONCE, "max_tokens": 3, "echo": True, "logprobs": 2, "stream": stream}
    done = client.completions.create(**asked)
    choices = [choice for chunk in done for choice in chunk.choices] if stream else done.choices
    text = "".join(choice.text for choice in choices)
    names = ("tokens", "text_offset", "token_logprobs", "top_logprobs")
    told = {name: [each for choice in choices for each in getattr(choice.logprobs, name)] for name in names}
    assert text.startswith(ONCE) and "".join(told["tokens"]) == text
    assert [text[offset:][: len(token)] for token, offset in zip(told["tokens"], told["text_offset"])] == told["tokens"]
    for token, value, best in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"]):
        assert best[token] == value <= 0 and len(best) in (2, 3)
    by_ids = client.completions.create(**{**asked, "stream": False, "prompt": ids_of(server, ONCE)}).choices[0]
    assert by_ids.logprobs.token_logprobs == [None, *told["token_logprobs"]], "nothing comes before the first token"


def test_the_likelihood_of_a_prompt_does_not_depend_on_the_cache(client, server):
    asked = {"model": server.model, "prompt": "la " * 300, "max_tokens": 1, "echo": True, "logprobs": 0}
    first, second = (client.completions.create(**asked).choices[0].logprobs.token_logprobs for _ in range(2))
    assert first == second and len(first) > 300


def test_an_answer_ends_where_it_is_told_to(client, server):
    whole = client.completions.create(model=server.model, prompt=ONCE, max_tokens=30).choices[0].text
    stop = whole[8:11]
    done = client.completions.create(model=server.model, prompt=ONCE, max_tokens=30, stop=stop).choices[0]
    assert (done.text, done.finish_reason) == (whole[: whole.index(stop)], "stop")
    kept = client.completions.create(
        model=server.model, prompt=ONCE, max_tokens=30, stop=stop, extra_body={"include_stop_str_in_output": True}
    )
    assert kept.choices[0].text == whole[: whole.index(stop)] + stop
    token = ids_of(server, whole)[3]
    by_id = client.completions.create(
        model=server.model, prompt=ONCE, max_tokens=30, extra_body={"stop_token_ids": [token]}
    )
    assert by_id.choices[0].finish_reason == "stop" and whole.startswith(by_id.choices[0].text)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_token_ids_on_request(server, path):
    """All of an answer, its end included, however little text they make; streamed and not."""
    question = "What is 1 + 1?"
    chat, text = (
        {"messages": [{"role": "user", "content": question}]},
        {"prompt": f"<｜User｜>{question}<｜Assistant｜></think>"},
    )
    asked = {
        **(text if path == "/v1/completions" else chat),
        "max_tokens": 20,
        "return_token_ids": True,
        "n": 2,
        "seed": 1,
        "temperature": 0.9,
    }
    whole = server.post(path, asked).json()
    ids = [choice["token_ids"] for choice in whole["choices"]]
    assert sum(map(len, ids)) == whole["usage"]["completion_tokens"] and [each[-1] for each in ids] == [1, 1]
    streamed: list[list[int]] = [[], []]
    for line in server.post(path, {**asked, "stream": True}).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                streamed[choice["index"]] += choice["token_ids"]
    assert streamed == ids
    assert "token_ids" not in server.post(path, {**asked, "return_token_ids": False}).json()["choices"][0]


def test_an_end_is_no_text_and_can_be_passed_over(client, server):
    asked = {"model": server.model, "prompt": "<｜User｜>What is 1 + 1?<｜Assistant｜></think>", "max_tokens": 20}
    done = client.completions.create(**asked).choices[0]
    assert done.finish_reason == "stop" and "<" not in done.text
    on = client.completions.create(**asked, extra_body={"ignore_eos": True})
    assert (
        on.choices[0].finish_reason == "length" and on.usage.completion_tokens == 20 and "｜" not in on.choices[0].text
    )
    least = client.completions.create(**asked, extra_body={"min_tokens": 10})
    assert least.usage.completion_tokens >= 10


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [[5], [99999]]}, "prompt[1]"),
        ({}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "logprobs": 500}, "logprobs"),
        ({"prompt": ["a"] * 70, "n": 2}, "prompt"),
        ({"prompt": "a", "messages": []}, "messages"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fake_server, body, param):
    reply = fake_server.post("/v1/completions", {"max_tokens": 2, **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_of_prompts_that_run_together_none_runs_where_one_is_refused(fake_server, client, server):
    asked = {"prompt": ["a", "b " * 5000], "max_tokens": 2}
    assert fake_server.post("/v1/completions", asked).status_code == 400
    assert fake_server.service.line.num_open == 0
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=server.model, prompt="a", stop=[""])


def curl(url: str, body: str) -> list[str]:
    """The lines that curl shows, the status last."""
    form = ["-sN", "-w", "\n%{http_code}", "-H", "Content-Type: application/json", "-d", body]
    done = subprocess.run(["curl", *form, url], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_answers_streams_and_errors(server):
    chat, hello = (
        f"{server.url}/v1/chat/completions",
        '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3',
    )
    *body, status = curl(chat, hello + "}")
    assert status == "200" and json.loads("".join(body))["choices"][0]["message"]["content"]
    *lines, status = curl(chat, hello + ', "stream": true}')
    events = [line.removeprefix("data: ") for line in lines if line]
    assert all(line.startswith("data: ") for line in lines if line) and (events[-1], status) == ("[DONE]", "200")
    parts = [json.loads(each)["choices"][0] for each in events[:-1]]
    assert parts[0]["delta"] == {"role": "assistant", "content": ""} and parts[-1]["finish_reason"] == "length"
    assert "usage" not in json.loads(events[0])
    *body, status = curl(chat, hello)
    assert status == "400" and json.loads("".join(body))["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_prompt_is_told_beside_the_loop(server, monkeypatch, stream):
    work, aside = server.service.work, []

    async def noted(size, function, *arguments, **options):
        aside.append((size, function.__name__))
        return await work(size, function, *arguments, **options)

    monkeypatch.setattr(server.service, "work", noted)
    asked = {"prompt": "la " * 300, "max_tokens": 2, "echo": True, "logprobs": 1, "stream": stream}
    reply = server.post("/v1/completions", asked)
    assert reply.status_code == 200
    (size, name) = aside[-1]
    assert name == ("event" if stream else "whole") and size > 16_384 and len(aside) == 2
