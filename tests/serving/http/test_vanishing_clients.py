"""Clients that go in the middle of something leave a 499 in the log and no traceback; noise after a request is answered."""

from __future__ import annotations

import socket

import pytest
from raw_dialect import until
from test_limits import talk

HEAD = b"POST /raw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def test_who_goes_before_the_body_is_whole_is_a_499(make_server, capfd):
    server = make_server()
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(HEAD % 100 + b'{"max')
        until(lambda: server.service.held_bytes)
    until(lambda: not server.service.held_bytes)
    server.stop()
    assert (server.lines()[-1]["status"], server.lines()[-1]["ended"]) == (499, "client_gone")
    assert "Traceback" not in capfd.readouterr().err


def test_a_connection_that_ends_under_a_stream_is_quiet(make_server, capfd, monkeypatch):
    server = make_server("executor.step_time_s=0.01")

    def abort_all():
        for connection in list(server.server._uvicorn.server_state.connections):
            connection.transport.abort()

    body = b'{"max_tokens": 3000, "stream": true}'
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(HEAD % len(body) + body)
        assert line.recv(100)
        delivered = server.service.line.delivered

        def cut(events, admitted):  # in the same turn of the loop as the next events
            delivered(events, admitted)
            if events:
                abort_all()

        monkeypatch.setattr(server.service.line, "delivered", cut)
        until(lambda: not server.service.admission.num_open)
    server.stop()
    assert server.lines()[-1]["ended"] == "client_gone"
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01", b"NOT HTTP\r\n\r\n"])
def test_noise_behind_a_request_that_waits_is_answered(make_server, noise):
    server = make_server("executor.step_time_s=0.5")
    body = b'{"max_tokens": 30}'
    got = talk(server, HEAD % len(body) + body, noise, pause_s=0.2)
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1
    until(lambda: not server.service.admission.num_open)


def test_what_a_simulation_cannot_do_is_400_in_processes_of_its_own_too(make_server):
    server = make_server(in_process=False)
    body = {"model": server.model, "prompt": [5, 6], "max_tokens": 2, "logprobs": 2}
    refused = server.post("/v1/completions", body)
    assert refused.status_code == 400 and "simulation" in refused.json()["error"]["message"]
    assert server.post("/raw", {"regex": "a+"}).status_code == 400
