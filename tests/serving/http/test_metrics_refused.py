"""deepinfer_requests_refused_total: whoever refused a request, it is counted once and with its reason."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from deepinfer.serving.http.metrics_refused import REASONS, reason_of, refusal


def told(url: str) -> dict[tuple[str, ...], float]:
    text = httpx.get(f"{url}/metrics").text
    (family,) = (each for each in families(text) if each.name == "deepinfer_requests_refused")
    return {(each.labels["dialect"], each.labels["status"], each.labels["code"]): each.value for each in family.samples}


def test_each_refusal_counts_once(make_server: Any) -> None:
    server = make_server("serving.max_prompt_tokens=8", "serving.max_answers=2")
    chat, hello = f"{server.url}/v1/chat/completions", [{"role": "user", "content": "Hello"}]
    assert httpx.post(chat, content=b"{").status_code == 400
    assert httpx.post(chat, json={"model": "none", "messages": hello}).status_code == 404
    assert httpx.post(chat, content=b"x", headers={"content-type": "text/plain"}).status_code == 415
    assert httpx.post(f"{server.url}/v1/embeddings", json={}).status_code == 404
    long = {"model": server.model, "prompt": list(range(1, 20)), "max_tokens": 4}
    assert httpx.post(f"{server.url}/v1/completions", json=long).status_code == 400
    assert httpx.get(f"{server.url}/nothing").status_code == 404, "no request for work"
    found = told(server.url)
    assert sum(found.values()) == 5
    statuses = sorted((dialect, status) for dialect, status, _ in found)
    assert statuses == [("chat", "400"), ("chat", "404"), ("chat", "415"), ("completions", "400"), ("other", "404")]
    assert found["chat", "415", "not_json"] == found["other", "404", "not_found"] == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "state", "counted"),
    [
        ("POST", "/v1/messages", 401, {}, ("messages", "401", "unknown_key")),
        ("POST", "/tokenize", 413, {}, ("other", "413", "too_large")),
        ("POST", "/v1/responses", 418, {}, ("responses", "418", "other")),
        ("POST", "/v1/responses", 429, {"refused": True}, None),
        ("POST", "/v1/responses", 499, {}, None),
        ("POST", "/v1/responses", 200, {}, None),
        ("GET", "/health", 503, {}, None),
    ],
)
def test_what_counts(method: str, path: str, status: int, state: dict[str, bool], counted: Any) -> None:
    assert refusal({"type": "http", "method": method, "path": path, "state": state}, status) == counted


def test_a_closer_reason_wins() -> None:
    assert reason_of(429, "queue_full") == "queue_full" and reason_of(429) == REASONS[429]
