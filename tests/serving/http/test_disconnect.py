"""A client that goes: its request ends within a step, and nobody else notices."""

from __future__ import annotations

import json
import socket
import threading

import httpx
import pytest
from raw_dialect import until

LONG = {"prompt": [1, 2, 3], "max_tokens": 3000}


def open_request(server, body, buffer_bytes: int | None = None) -> socket.socket:
    line = socket.socket()
    if buffer_bytes is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    line.settimeout(10)
    line.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    head = f"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    line.sendall(head.encode() + data)
    return line


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_whose_client_goes_ends_within_a_step(make_server, stream):
    server = make_server("executor.step_time_s=0.15")
    engine, line = server.service.served.engine, server.service.line
    client = open_request(server, LONG | {"stream": stream, "n": 2})
    until(lambda: line.num_steps >= 2)
    before = engine.num_submitted
    client.close()
    until(lambda: not (line.num_open or engine.has_work))
    assert engine.num_submitted - before <= 2  # the step that ran, and one that was scheduled ahead
    assert server.service.admission.num_open == 0 and line.num_waiting == 0
    assert engine.stats().finished["abort"] == 2
    server.stop()
    assert server.lines()[-1]["ended"] == "client_gone"


def test_a_request_that_still_waits_is_taken_out_of_the_queue(make_server):
    server = make_server("executor.step_time_s=0.05", "scheduler.max_num_seqs=1")
    first = open_request(server, LONG | {"stream": True})
    first.recv(10)
    second = open_request(server, LONG | {"stream": True})
    until(lambda: server.service.line.num_waiting >= 1)
    second.close()
    until(lambda: not server.service.line.num_waiting)
    assert server.service.line.num_open == 1
    first.close()


def test_neighbours_of_those_who_go_get_every_token(make_server):
    server = make_server("executor.step_time_s=0.01")
    alone = server.post("/raw", {"prompt": [9, 8, 7], "max_tokens": 60}).json()
    found = []
    staying = threading.Thread(
        target=lambda: found.append(server.post("/raw", {"prompt": [9, 8, 7], "max_tokens": 60}).json())
    )
    staying.start()
    for _ in range(20):
        leaving = open_request(server, LONG | {"stream": True})
        leaving.recv(10)
        leaving.close()
    staying.join(30)
    assert found == [alone | {"cached_tokens": found[0]["cached_tokens"]}]
    until(lambda: not server.service.line.num_open)
    assert httpx.get(f"{server.url}/health").status_code == 200
