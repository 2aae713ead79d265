"""What a server says of itself while it starts, and where it cannot."""

from __future__ import annotations

import threading

import httpx
import pytest
from raw_dialect import until

from deepinfer.config.errors import Problem, Refused


def start_with(service, before):
    """Have `before(tell)` run ahead of the engine's start."""
    start = service.line._start

    def changed(tell):
        before(tell)
        return start(tell)

    service.line._start = changed


def test_a_start_tells_its_phase_and_requests_wait_outside(make_server):
    gate = threading.Event()

    def load(tell):
        tell("loading weights 3/40")
        gate.wait(30)

    server = make_server(ready=False, change=lambda service: start_with(service, load))
    until(lambda: server.health()[1]["phase"] == "loading weights 3/40")
    status, body = server.health()
    assert status == 503 and body["status"] == "starting" and body["seconds"] >= 0
    assert httpx.get(f"{server.url}/live").status_code == httpx.get(f"{server.url}/v1/models").status_code == 200
    for path, asked in (("/raw", {}), ("/tokenize", {"prompt": "a"})):
        refused = server.post(path, asked)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "2"
        assert "loading weights" in refused.json()["error"]["message"]
    gate.set()
    server.wait_ready()
    assert server.post("/raw", {}).status_code == 200


@pytest.mark.parametrize(
    "error", [Refused([Problem(asked="x", found="no such folder")]), MemoryError("no such folder")]
)
def test_a_start_that_fails_ends_the_server(make_server, error):
    def fail(tell):
        raise error

    server = make_server(ready=False, change=lambda service: start_with(service, fail))
    until(lambda: server.code is not None)
    assert server.code == 1 and "no such folder" in str(server.service.line.failure)


def test_a_server_can_be_stopped_while_it_starts(make_server):
    gate = threading.Event()
    server = make_server(ready=False, change=lambda service: start_with(service, lambda tell: gate.wait(60)))
    until(lambda: server.health()[0] == 503)
    server.stop()
    assert server.code == 0 and not gate.is_set()
    gate.set()


def test_health_generate_does_not_wait_for_ever(make_server):
    server = make_server("serving.health_generate_s=0.1", "executor.step_time_s=0.5")
    reply = httpx.get(f"{server.url}/health_generate")
    assert reply.status_code == 503 and reply.json()["error"]["code"] == "too_slow"
    until(lambda: server.service.admission.num_open == 0)
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("path", ["/live", "/health", "/version", "/v1/models"])
def test_head_is_answered_without_a_body(fake_server, path):
    reply = httpx.head(f"{fake_server.url}{path}")
    assert reply.status_code == 200 and not reply.content
