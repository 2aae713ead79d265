"""Ids of requests: a client's own comes back, any other request gets one."""

from __future__ import annotations

import re


def test_a_clients_own_id_comes_back_and_stands_in_the_log(make_server):
    server = make_server()
    assert server.post("/raw", {}, headers={"x-request-id": "job-17"}).headers["x-request-id"] == "job-17"
    server.stop()
    assert server.lines()[-1]["request_id"] == "job-17"


def test_others_get_one_that_is_new(fake_server):
    found = {fake_server.post("/raw", {}).headers["x-request-id"] for _ in range(3)}
    assert len(found) == 3 and all(re.fullmatch("[0-9a-f]{32}", each) for each in found)


def test_an_id_that_is_none_is_replaced(fake_server):
    for bad in ("a" * 200, "two words", ""):
        assert fake_server.post("/raw", {}, headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_errors_have_one_too_and_anthropics_clients_find_theirs(fake_server):
    assert fake_server.post("/raw", b"{").headers["x-request-id"]
    reply = fake_server.post("/v1/messages/raw", b"{", headers={"x-request-id": "r1"})
    assert reply.headers["request-id"] == "r1" == reply.json()["request_id"]
