"""A stream that has nothing to say for long says that it lives; one whose client has gone is told so in the log."""

from __future__ import annotations

import httpx
import pytest
from raw_dialect import read_events, until
from test_disconnect import open_request

SLOW = ("executor.step_time_s=0.5", "serving.ping_s=0.1")


@pytest.mark.parametrize("path, ping", [("/raw", ": ping\n\n"), ("/v1/messages/raw", "event: ping\n")])
def test_silence_is_broken_before_the_first_token_and_after(make_server, path, ping):
    server = make_server(*SLOW)
    with httpx.stream("POST", f"{server.url}{path}", json={"max_tokens": 2, "stream": True}, timeout=30) as reply:
        parts = list(reply.iter_text())
    assert reply.status_code == 200 and parts[0].startswith(ping)
    text = "".join(parts)
    events = [event for event in read_events(text) if event.get("type") != "ping"]
    assert sum(len(event["token_ids"]) for event in events) == 2
    first_token = text.index('"token_ids"')
    assert ping in text[:first_token] and ping in text[first_token:]


def test_a_stream_that_says_enough_has_no_pings(make_server):
    server = make_server("executor.step_time_s=0.005", "serving.ping_s=1")
    reply = server.post("/raw", {"max_tokens": 20, "stream": True})
    assert "ping" not in reply.text


@pytest.mark.parametrize("stream", [True, False])
def test_who_goes_before_the_first_token_is_a_499_in_the_log(make_server, stream):
    server = make_server("executor.step_time_s=0.3")
    seen = []
    server.service.on_http.append(lambda scope, status, seconds: seen.append((scope["path"], status)))
    client = open_request(server, {"max_tokens": 5, "stream": stream})
    until(lambda: server.service.line.num_open)
    client.close()
    until(lambda: ("/raw", 499) in seen)
    server.stop()
    last = server.lines()[-1]
    assert (last["status"], last["ended"]) == (499, "client_gone")
