"""Told to stop, a server lets running requests finish, refuses new ones, and ends what is not through at the deadline."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from raw_dialect import read_events, until

SLOW = "executor.step_time_s=0.02"


def stream(server, tokens: int, path: str = "/raw"):
    """(thread, list that gets the reply) of a stream that has begun."""
    found = []
    body = {"max_tokens": tokens, "stream": True}
    thread = threading.Thread(target=lambda: found.append(server.post(path, body)))
    before = server.service.line.num_steps
    thread.start()
    until(lambda: server.service.line.num_steps > before)
    return thread, found


def test_running_requests_finish_and_new_ones_are_refused(make_server):
    server = make_server(SLOW)
    thread, found = stream(server, 60)
    server.stop(wait=False)
    until(lambda: server.health()[1]["status"] == "draining")
    assert server.health()[0] == 503 and httpx.get(f"{server.url}/live").status_code == 200
    refused = server.post("/raw", {})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) >= 1
    thread.join(30)
    events = read_events(found[0].text)
    assert sum(len(event["token_ids"]) for event in events) == 60 and events[-1]["finish_reason"] == "length"
    server.stop()
    assert server.code == 0


@pytest.mark.parametrize("path", ["/raw", "/v1/messages/raw"])
def test_at_the_deadline_a_stream_ends_with_an_error_event(make_server, path):
    server = make_server(SLOW, "serving.drain_s=0.2")
    thread, found = stream(server, 4000, path)
    server.stop()
    thread.join(30)
    error = read_events(found[0].text)[-1]["error"]
    assert "serving.drain_s=0.2" in error["message"]
    assert error["type"] == ("overloaded_error" if "messages" in path else "service_unavailable_error")
    assert server.code == 0 and server.service.served.engine.stats().finished["abort"] == 1


def test_at_the_deadline_a_whole_answer_is_503(make_server):
    server, found = make_server(SLOW, "serving.drain_s=0.2"), []
    thread = threading.Thread(target=lambda: found.append(server.post("/raw", {"max_tokens": 4000})))
    thread.start()
    until(lambda: server.service.line.num_steps)
    server.stop()
    thread.join(30)
    assert found[0].status_code == 503 and found[0].json()["error"]["code"] == "shutting_down"


class Command:
    """`deepinfer serve …` as a process of its own, once it is ready."""

    def __init__(self, *overrides: str) -> None:
        command = [sys.executable, "-m", "deepinfer", "serve", "serving.port=0", "executor=simulated", *overrides]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        until(lambda: any("listening on" in line for line in self.said), 60)
        self.url = next(line.split()[-1] for line in self.said if "listening on" in line)
        until(lambda: httpx.get(f"{self.url}/health").status_code == 200, 60)

    def _listen(self) -> None:
        for line in self.process.stderr:
            self.said.append(line)

    def children(self) -> list[int]:
        found = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid="], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_the_command_ends_well_on_sigterm():
    command = Command("executor.step_time_s=0.05")
    (child,) = command.children()
    assert httpx.get(f"{command.url}/health_generate").status_code == 200
    command.process.send_signal(signal.SIGTERM)
    assert command.process.wait(20) == 0
    until(lambda: gone(child))
    said = "".join(command.said)
    assert "told to stop" in said and "Traceback" not in said


def test_the_command_drains_on_sigterm_and_ends_at_once_at_a_second_signal():
    command = Command("executor.step_time_s=3")
    (child,) = command.children()
    line = socket.create_connection(("127.0.0.1", int(command.url.rpartition(":")[2])))
    line.sendall(b"GET /health_generate HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: 'num_requests_open{model_name="v41_tiny"} 1' in httpx.get(f"{command.url}/metrics").text)
    command.process.send_signal(signal.SIGTERM)
    until(lambda: any("1 running requests" in line for line in command.said))
    command.process.send_signal(signal.SIGTERM)
    assert command.process.wait(10) == 143
    until(lambda: gone(child))
    line.close()
