"""Where a server may listen, and what is said where it may not."""

from __future__ import annotations

import socket

import pytest

from deepinfer.cli.main import main
from deepinfer.cli.serve_address import is_loopback, url_of


def test_a_port_that_is_taken_is_said_with_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "executor=simulated", f"serving.port={port}"]) == 7
    told = capsys.readouterr().err
    assert f"serving.port={port}" in told and "in use" in told and "type: serving.port=0" in told


def test_a_host_that_there_is_not_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "executor=simulated", "serving.host=192.0.2.1", "serving.allow_open=true", "serving.port=0"]
    assert main(words) == 7
    assert "type: serving.host=127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_what_other_machines_reach(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_every_problem_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "serving.host=0.0.0.0", "hardware=cpu", "parallel.expert=3"]) != 0
    told = capsys.readouterr().err
    assert "serving.allow_open=true" in told and "expert" in told


def test_urls_can_be_clicked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    if socket.has_dualstack_ipv6():
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            assert url_of(listener).startswith("http://[::1]:")
