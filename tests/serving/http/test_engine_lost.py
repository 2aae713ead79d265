"""An engine that goes: requests end with a reason, /health says it, and where the plan says so it starts again."""

from __future__ import annotations

import os
import signal

import httpx
from raw_dialect import read_events, until
from test_drain import stream


def child_of(server) -> int:
    (pid,) = server.service.served.engine.world.children.pids()
    return pid


def check_lost(server, found, cause: str) -> None:
    last = read_events(found[0].text)[-1]
    assert last["error"]["code"] == "engine_lost" and cause in last["error"]["message"]
    until(lambda: server.health()[1]["status"] == "failed")
    status, body = server.health()
    assert status == 503 and cause in body["cause"]
    assert httpx.get(f"{server.url}/live").status_code == 503
    refused = server.post("/raw", {})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_lost")
    assert server.service.admission.num_open == server.service.line.num_waiting == 0
    server.stop()
    assert server.code == 1


def test_a_step_that_fails_ends_the_requests_too(make_server, capfd):
    server = make_server("executor.step_time_s=0.02")
    thread, found = stream(server, 4000)

    def broken():
        raise FloatingPointError("a fault in the step")

    server.service.served.engine.step = broken
    thread.join(30)
    check_lost(server, found, "a fault in the step")
    assert "Traceback" in capfd.readouterr().err


def test_an_engine_that_may_start_again_does_and_its_answers_go_on(make_server):
    server = make_server("executor.step_time_s=0.005", "serving.engine_restarts=1", in_process=False)
    body = {"prompt": list(range(20, 40)), "max_tokens": 300}
    whole = server.post("/raw", body).json()["token_ids"][0]
    states = []
    server.service.line.on_state = states.append
    found = []
    with httpx.stream("POST", f"{server.url}/raw", json=body | {"stream": True}, timeout=60) as reply:
        lines = reply.iter_lines()
        found += read_events(next(lines))
        os.kill(child_of(server), signal.SIGKILL)
        for line in lines:
            found += read_events(line)
    assert [token for event in found for token in event["token_ids"]] == whole
    until(lambda: server.health()[0] == 200)
    assert states == ["restarting", "ready"]
    thread, lost = stream(server, 3000)
    os.kill(child_of(server), signal.SIGKILL)
    thread.join(30)
    check_lost(server, lost, "SIGKILL")
