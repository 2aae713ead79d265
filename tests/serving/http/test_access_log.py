"""The access log: a JSON line for each request, with numbers and without text."""

from __future__ import annotations

import io
import json
import threading

import httpx

from deepinfer.serving.http import access_log
from deepinfer.serving.http.access_log import AccessLog

SCOPE = {"path": "/x", "method": "GET", "state": {"request_id": "1"}, "client": ("h", 1)}


def test_a_line_tells_what_was_used_and_never_what_was_said(make_server):
    server = make_server()
    server.post("/raw", {"prompt": [11, 12, 13], "max_tokens": 5, "stream": True})
    server.post("/tokenize", {"prompt": "a secret of mine"})
    server.post("/tokenize", {"prompt": "a secret of mine", "secret": 1})
    server.stop()
    raw, tokenize, refused = server.lines()
    assert (raw["method"], raw["path"], raw["status"], raw["stream"]) == ("POST", "/raw", 200, True)
    assert (raw["prompt_tokens"], raw["completion_tokens"], raw["finish_reasons"]) == (3, 5, ["length"])
    assert raw["queue_ms"] <= raw["first_token_ms"] <= raw["ms"] and raw["sent_bytes"] > 100
    assert (tokenize["status"], refused["status"]) == (200, 400)
    assert "secret of mine" not in server.log.getvalue()


def test_probes_are_not_logged(make_server):
    server = make_server()
    assert httpx.get(f"{server.url}/live").status_code == 200
    server.stop()
    assert server.lines() == []


def test_nobody_waits_for_a_log_that_is_not_read(monkeypatch):
    class Stuck(io.StringIO):
        going = threading.Event()

        def write(self, text: str) -> int:
            self.going.wait(30)
            return super().write(text)

    monkeypatch.setattr(access_log, "MOST_LINES", 3)
    out = Stuck()
    log = AccessLog(out=out)
    for _ in range(50):
        log(SCOPE, 200, 0.1, 5)
    out.going.set()
    while log._lines.qsize():
        pass
    log(SCOPE, 200, 0.1, 5)
    log.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[-1]["left_out"] == 50 - (len(lines) - 1) and len(lines) <= 5
