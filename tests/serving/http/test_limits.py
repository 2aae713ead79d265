"""What is too large or too much is refused with a status, a sentence and, where waiting helps, Retry-After."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import httpx
import pytest
from raw_dialect import until

LONG = {"max_tokens": 2000, "stream": True}


@contextlib.contextmanager
def running(server, number=1):
    """Streams that are running, each having given its first token."""
    with contextlib.ExitStack() as stack:
        streams = []
        for _ in range(number):
            reply = stack.enter_context(httpx.stream("POST", f"{server.url}/raw", json=LONG, timeout=30))
            streams.append(reply.iter_bytes())  # one that is dropped hangs up
            next(streams[-1])
        yield


def test_a_body_that_is_too_large_is_413_whether_it_says_so_or_not(make_server):
    server = make_server("serving.max_body_bytes=1000")
    big = json.dumps({"prompt": [1] * 1000}).encode()
    told = server.post("/raw", big)
    assert told.status_code == 413 and "max_body_bytes" in told.json()["error"]["message"]

    def parts():
        for start in range(0, len(big), 100):
            yield big[start : start + 100]

    chunked = httpx.post(f"{server.url}/v1/messages/raw", content=parts(), headers={"content-type": "application/json"})
    assert chunked.status_code == 413 and chunked.json()["error"]["type"] == "request_too_large"
    assert server.post("/raw", {}).status_code == 200


@pytest.mark.parametrize(
    "override, body, found",
    [
        ("serving.max_prompt_tokens=10", {"prompt": [1] * 11}, "11 tokens"),
        ("serving.max_answers=2", {"n": 3}, "n=3"),
        ("serving.max_grammar_bytes=100", {"regex": "a" * 200}, "grammar has"),
    ],
)
def test_requests_that_are_too_large_are_400(make_server, override, body, found):
    server = make_server(override)
    reply = server.post("/raw", body)
    assert reply.status_code == 400 and found in reply.json()["error"]["message"]
    assert server.post("/raw", {}).status_code == 200


def test_what_the_engine_refuses_is_400_with_its_numbers(fake_server):
    reply = fake_server.post("/raw", {"prompt": [1] * 5000})
    assert reply.status_code == 400 and "4,096" in reply.json()["error"]["message"]
    reply = fake_server.post("/raw", {"prompt": [10**6]})
    assert reply.status_code == 400 and "vocabulary" in reply.json()["error"]["message"]
    assert fake_server.service.admission.num_open == 0


def test_a_full_queue_is_429_and_then_empties(make_server):
    server = make_server("serving.max_waiting=1", "scheduler.max_num_seqs=1", "executor.step_time_s=0.02")
    with running(server):
        waiting = threading.Thread(target=server.post, args=("/raw", {"max_tokens": 1}))
        waiting.start()
        until(lambda: server.service.line.num_waiting >= 1)
        refused = server.post("/raw", {})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
    waiting.join(30)
    assert server.post("/raw", {"max_tokens": 1}).status_code == 200
    assert server.service.line.num_waiting == 0


def test_open_streams_are_limited(make_server):
    server = make_server("serving.max_streams=2", "executor.step_time_s=0.02")
    with running(server, 2):
        refused = server.post("/raw", {})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
        assert httpx.get(f"{server.url}/health").status_code == 200
    until(lambda: not server.service.admission.num_open)
    assert server.post("/raw", {}).status_code == 200


def talk(server, data: bytes, *more: bytes, pause_s: float = 0.0) -> bytes:
    """What a server answers to raw bytes until it hangs up, or has said one whole response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
        line.sendall(data)
        for part in more:
            threading.Event().wait(pause_s)
            with contextlib.suppress(OSError):
                line.sendall(part)
        got = b""
        with contextlib.suppress(OSError):
            while part := line.recv(65536):
                got += part
        return got


HEAD = b"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_headers_and_bodies_come_in_time_or_not_at_all(make_server):
    server = make_server("serving.header_timeout_s=0.3", "serving.body_timeout_s=0.3")
    assert b" 408 " in talk(server, b"")
    assert b" 408 " in talk(server, b"GET /live HTTP/1.1\r\nX-Slow: ", b"a", b"a", b"a", pause_s=0.12)
    slow = talk(server, HEAD + b"Content-Length: 100\r\n\r\n{", b" ", pause_s=0.1)
    assert b" 408 " in slow and b"body_timeout_s" in slow
    assert server.post("/raw", {}).status_code == 200


def test_open_connections_are_limited(make_server):
    server = make_server("serving.max_connections=2")
    with socket.create_connection(("127.0.0.1", server.port)), socket.create_connection(("127.0.0.1", server.port)):
        until(
            lambda: (
                b" 503 " in (got := talk(server, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"))
                and b"max_connections" in got
            )
        )
    until(lambda: httpx.get(f"{server.url}/live").status_code == 200)


def test_blank_lines_between_requests_hold_no_connection(make_server):
    server = make_server("serving.header_timeout_s=0.3")
    asked = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
    got = talk(server, asked, *[b"\r\n"] * 8, pause_s=0.08)
    assert got.startswith(b"HTTP/1.1 200 ") and b" 408 " in got


def test_nothing_is_written_into_a_stream_that_is_sent(make_server):
    server = make_server("serving.max_header_bytes=500", "executor.step_time_s=0.02")
    body = b'{"max_tokens": 4000, "stream": true}'
    head = b"POST /raw HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    got = talk(server, head + body, b"GET /live HTTP/1.1\r\n", b"A: " + b"b" * 800, pause_s=0.3)
    assert got.count(b"HTTP/1.1 ") == 1 and b" 431 " not in got
    until(lambda: server.service.admission.num_open == 0)


def test_headers_have_a_size(make_server):
    server = make_server("serving.max_header_bytes=2000")
    assert b" 431 " in talk(server, b"GET /live HTTP/1.1\r\n" + b"A: " + b"b" * 3000 + b"\r\n\r\n")
    endless = [b"b" * 1000] * 4
    assert b" 431 " in talk(server, b"GET /live HTTP/1.1\r\nA: ", *endless, pause_s=0.02)
    assert b" 431 " in talk(server, b"GET /" + b"b" * 3000 + b" HTTP/1.1\r\n\r\n")
    assert server.post("/raw", {}).status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length : 2\r\n\r\n{}",
        b"GET /live HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_requests_that_two_readers_read_differently_are_refused(fake_server, request_bytes):
    got = talk(fake_server, request_bytes)
    assert got.startswith(b"HTTP/1.1 400 ") and got.count(b"HTTP/1.1 ") == 1 and b"connection: close" in got
