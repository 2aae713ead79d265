"""Whose pages may ask: a page that has pointed a name of its own at this machine gets nothing."""

from __future__ import annotations

import httpx
import pytest

from deepinfer.serving.http.auth import new_key


def get(server, host: str | None = None, path: str = "/v1/models", **headers: str) -> httpx.Response:
    named = {} if host is None else {"host": host}
    return httpx.get(f"{server.url}{path}", headers=named | headers)


def test_a_name_that_could_be_anybodys_is_refused_without_keys(fake_server):
    port = fake_server.port
    rebound = get(fake_server, f"evil.example:{port}", origin=f"http://evil.example:{port}")
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "host_not_allowed")
    assert "serving.cors_origins=[http://evil.example" in rebound.json()["error"]["message"]
    assert get(fake_server, f"127.0.0.1.evil.example:{port}").status_code == 403
    messages = get(fake_server, f"evil.example:{port}", "/v1/messages/x")
    assert messages.status_code == 403 and messages.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "[::1]:{port}", "10.1.2.3", "localhost:{port}", "LOCALHOST", "deepinfer:8000"]
)
def test_addresses_and_names_of_this_network_are_answered(fake_server, host):
    assert get(fake_server, host.format(port=fake_server.port)).status_code == 200


def test_names_that_somebody_wrote_down_are_answered(make_server):
    server = make_server("serving.cors_origins=[https://chat.example.org]")
    assert get(server, "chat.example.org").status_code == 200
    assert get(server, "other.example.org").status_code == 403
    assert get(make_server("serving.cors_origins=['*']"), "other.example.org").status_code == 200


def test_with_keys_every_name_will_do_and_refusals_can_be_read_by_pages(make_server, tmp_path):
    secret, entry = new_key("alice")
    (tmp_path / "keys.yaml").write_text(entry)
    site = "https://chat.example.org"
    server = make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}", f"serving.cors_origins=[{site}]")
    assert get(server, "api.example.org", authorization=f"Bearer {secret}").status_code == 200
    nobody = get(server, "api.example.org", origin=site)
    assert nobody.status_code == 401 and nobody.headers["access-control-allow-origin"] == site
    assert "x-request-id" in nobody.headers["access-control-expose-headers"]
    other = get(server, "api.example.org", origin="https://evil.example")
    assert other.status_code == 403 and "access-control-allow-origin" not in other.headers
