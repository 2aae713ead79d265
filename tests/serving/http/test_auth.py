"""API keys: who is let in, what a key may, and that no key lies anywhere."""

from __future__ import annotations

import json

import httpx
import pytest

from deepinfer.cli.main import main
from deepinfer.serving.http.auth import hash_of, new_key, read_keys
from deepinfer.serving.http.limits import Bucket


@pytest.fixture
def key_file(tmp_path):
    """keys(alice={"max_tokens": 8}, …) → (path, {name: key})."""

    def write(**limits):
        secrets, text = {}, ""
        for name, limit in limits.items():
            secrets[name], entry = new_key(name)
            text += entry + (f"  limits: {json.dumps(limit)}\n" if limit else "")
        (tmp_path / "keys.yaml").write_text(text)
        return str(tmp_path / "keys.yaml"), secrets

    return write


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_only_who_has_a_key_is_let_in(make_server, key_file):
    path, keys = key_file(alice={}, bob={})
    server = make_server(f"serving.api_keys={path}")
    assert server.post("/raw", {}, headers=bearer(keys["alice"])).status_code == 200
    assert server.post("/raw", {}, headers={"x-api-key": keys["bob"]}).status_code == 200
    nobody = server.post("/raw", {})
    assert nobody.status_code == 401 and nobody.headers["www-authenticate"] == "Bearer"
    for wrong in ("sk-deepinfer-x", keys["alice"][:-1], keys["alice"] + " "[:0] + "é", hash_of(keys["alice"])):
        reply = server.post("/raw", {}, headers={"x-api-key": wrong.encode()})
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    messages = server.post("/v1/messages/raw", {})
    assert messages.status_code == 401 and messages.json()["error"]["type"] == "authentication_error"
    assert httpx.get(f"{server.url}/v1/plan").status_code == httpx.get(f"{server.url}/openapi.json").status_code == 401
    for path in ("/health", "/live", "/version"):
        assert httpx.get(f"{server.url}{path}").status_code == 200


def test_the_log_names_the_key_and_nothing_shows_it(make_server, key_file):
    path, keys = key_file(alice={})
    server = make_server(f"serving.api_keys={path}")
    server.post("/raw", {}, headers=bearer(keys["alice"]))
    plan = httpx.get(f"{server.url}/v1/plan", headers=bearer(keys["alice"])).text
    server.stop()
    assert server.lines()[0]["key"] == "alice"
    secret = keys["alice"].removeprefix("sk-deepinfer-")
    with open(path) as file:
        assert all(secret not in text for text in (server.log.getvalue(), plan, file.read()))


@pytest.mark.parametrize(
    "limits, body, code",
    [
        ({"requests_per_min": 2}, {}, "key_requests_per_min"),
        ({"tokens_per_min": 12}, {"max_tokens": 6}, "key_tokens_per_min"),
    ],
)
def test_each_key_has_limits_of_its_own(make_server, key_file, limits, body, code):
    path, keys = key_file(alice=limits, bob={})
    server = make_server(f"serving.api_keys={path}")
    replies = [server.post("/raw", body, headers=bearer(keys["alice"])) for _ in range(3)]
    assert (replies[-1].status_code, replies[-1].json()["error"]["code"]) == (429, code)
    assert replies[0].status_code == 200 and int(replies[-1].headers["retry-after"]) >= 1
    assert server.post("/raw", body, headers=bearer(keys["bob"])).status_code == 200


def test_answers_end_where_a_key_may_have_no_more(make_server, key_file):
    path, keys = key_file(alice={"max_tokens": 3}, bob={})
    server = make_server(f"serving.api_keys={path}")
    lengths = {}
    for name, secret in keys.items():
        (answer,) = server.post("/raw", {"max_tokens": 5}, headers=bearer(secret)).json()["token_ids"]
        lengths[name] = len(answer)
    assert lengths == {"alice": 3, "bob": 5}


def test_a_key_may_have_so_many_requests_at_once(make_server, key_file):
    path, keys = key_file(alice={"max_streams": 1}, bob={})
    server = make_server(f"serving.api_keys={path}", "executor.step_time_s=0.05")
    long = {"max_tokens": 1000, "stream": True}
    with httpx.stream("POST", f"{server.url}/raw", json=long, headers=bearer(keys["alice"])) as running:
        tokens = running.iter_bytes()
        next(tokens)
        refused = server.post("/raw", {}, headers=bearer(keys["alice"]))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_streams")
        assert server.post("/raw", {"max_tokens": 1}, headers=bearer(keys["bob"])).status_code == 200
        assert next(tokens)


def test_prefixes_are_shared_within_a_key_and_a_salt_only(make_server, key_file):
    path, keys = key_file(alice={}, bob={})
    server = make_server(f"serving.api_keys={path}", "cache=prefix")
    body = {"prompt": list(range(10, 310)), "max_tokens": 2}

    def cached(name: str, salt: str = "") -> int:
        return server.post("/raw", body | {"salt": salt}, headers=bearer(keys[name])).json()["cached_tokens"]

    assert [cached("alice"), cached("bob"), cached("alice", "mine")] == [0, 0, 0]
    assert min(cached("alice"), cached("bob"), cached("alice", "mine")) >= 128
    assert cached("bob", "mine") == 0


def test_a_bucket_fills_evenly_and_may_be_overdrawn():
    now_s = 0.0
    bucket = Bucket(60, lambda: now_s)
    assert bucket.missing_s(60) == 0
    bucket.take(90)  # what an answer took is known afterwards
    assert bucket.missing_s(1) == pytest.approx(31)
    now_s = 31.0
    assert bucket.missing_s(1) == pytest.approx(0, abs=1e-9) and bucket.missing_s(61) == bucket.missing_s(60)
    now_s = 1000.0
    assert bucket.missing_s(60) == 0 and bucket.missing_s(1e9) == 0


def test_a_new_key_is_shown_once_and_its_entry_is_a_hash(capsys, tmp_path):
    assert main(["serve", "new_key=alice"]) == 0
    out, err = capsys.readouterr()
    secret = next(line.strip() for line in err.splitlines() if line.strip().startswith("sk-deepinfer-"))
    assert secret not in out and len(secret) > 50
    (tmp_path / "keys.yaml").write_text(out)
    keys = read_keys(tmp_path / "keys.yaml")
    assert len(keys) == 1 and keys.find(secret).id == "alice" and keys.find(secret + "x") is None
    assert main(["serve", "new_key=not a name"]) == 2


@pytest.mark.parametrize(
    "text, told",
    [
        ("- id: alice\n  hash: plain\n", "sha256"),
        ("- id: a b\n  hash: sha256:" + "0" * 64, "letters"),
        (("- id: a\n  hash: sha256:" + "0" * 64 + "\n") * 2, "twice"),
        ("- id: a\n  hash: sha256:" + "0" * 64 + "\n  limits: {max_tokens: 0}\n", "at least 1"),
        ("- id: a\n  hash: sha256:" + "0" * 64 + "\n  limit: {}\n", "limit"),
        ("{}", "array"),
        ("a: [", "keys.yaml"),
    ],
)
def test_a_file_of_keys_that_is_wrong_stops_the_start(tmp_path, capsys, text, told):
    (tmp_path / "keys.yaml").write_text(text)
    assert main(["serve", "serving.port=0", f"serving.api_keys={tmp_path / 'keys.yaml'}"]) == 2
    assert told in capsys.readouterr().err


def test_other_machines_are_let_in_with_keys_or_a_word_only(capsys):
    assert main(["serve", "serving.host=0.0.0.0", "serving.port=0"]) == 2
    assert "serving.allow_open=true" in capsys.readouterr().err
