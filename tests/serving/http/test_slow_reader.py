"""A client that does not read: it holds no memory, hinders nobody, and is let go."""

from __future__ import annotations

import socket

import msgspec
from raw_dialect import until
from test_disconnect import open_request

from deepinfer.engine.events import TokenEvent
from deepinfer.serving.answers import Answers, Piece

SMALL = 8192  # bytes


def test_who_does_not_read_is_cut_off(make_server):
    server = make_server("serving.slow_reader_s=0.4", "executor.step_time_s=0.0005")
    server.server._listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL
    )  # the system's buffers hold megabytes
    stuck = open_request(server, {"prompt": [1], "max_tokens": 4000, "n": 30, "stream": True}, SMALL)
    until(lambda: server.service.line.num_open >= 30)
    quick = server.post("/raw", {"max_tokens": 20})
    assert [len(each) for each in quick.json()["token_ids"]] == [20]
    until(lambda: not server.service.admission.num_open)
    server.stop()
    (line,) = [line for line in server.lines() if line["stream"] is True]
    assert line["ended"] == "slow_reader" and line["sent_bytes"] < 400_000
    stuck.close()


def test_news_that_nobody_fetches_is_merged_into_one_piece():
    answers = Answers(1, 1, 0.0, lambda *asked: None)
    for token in range(10_000):
        answers.push(0, Piece(index=0, token_ids=[token]) if token == 0 else TokenEvent(0, [token]))
    (piece,) = answers._news.values()
    assert piece.token_ids == list(range(10_000)) and len(msgspec.msgpack.encode(piece)) < 40_000
