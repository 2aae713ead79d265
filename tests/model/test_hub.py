"""Fetching from a hub that runs in this process on loopback: parts, resumption, the cache, and every refusal."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from deepinfer.model.checkpoint.errors import CheckpointErrors, HubError
from deepinfer.model.checkpoint.hub import fetch_checkpoint
from deepinfer.model.checkpoint.reader import INDEX_FILE, open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights

TINY_A = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
REPO = "someone/tiny-a"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


class FakeHub(ThreadingHTTPServer):
    """The four endpoints that a download uses, for one repository. `requests` logs (method, path, range)."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.commits = {"main": "a" * 40, "v1": "b" * 40}
        self.requests: list[tuple[str, str, str | None]] = []
        self.refusal: tuple[int, str] | None = None  # status and X-Error-Code for every request
        self.cut_at: dict[str, int] = {}  # file → bytes after which its next transfer breaks, once
        self.always_cut = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fetched(self) -> set[str]:
        return {path.rsplit("/", 1)[1] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        hub, path = self.server, self.path.split("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.refusal:
            return self.refuse(*hub.refusal)
        if match := re.fullmatch(rf"/api/models/{REPO}/(revision|tree)/([^/]+)", path):
            return self.describe(*match.groups())
        if match := re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path):
            return self.send_file(*match.groups(), with_body)
        return self.refuse(404, "RepoNotFound")

    def describe(self, what: str, revision: str) -> None:
        commit = self.server.commits.get(revision, revision)
        if commit not in self.server.commits.values():
            return self.refuse(404, "RevisionNotFound")
        files = self.server.files
        if what == "revision":
            value: object = {"id": REPO, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
        else:
            value = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
        return self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send_file(self, commit: str, name: str, with_body: bool) -> None:
        content = self.server.files.get(name)
        if content is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        status, start = 200, 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if not with_body:
            return self.send(status, b"", headers | {"Content-Length": str(len(content) - start)})
        cut = self.server.cut_at.get(name) if self.server.always_cut else self.server.cut_at.pop(name, None)
        return self.send(status, content[start:], headers, cut)

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b"", {"X-Error-Code": code})

    def send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


@pytest.fixture(scope="module")
def golden_files() -> dict[str, bytes]:
    files = {file.name: file.read_bytes() for file in TINY_A.iterdir()}
    return files | {"README.md": b"about", "pytorch_model.bin": b"never fetched"}


@pytest.fixture
def hub(golden_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    close_session()  # a session keeps the proxies it was born with
    server = FakeHub(dict(golden_files))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(hub: FakeHub, cache: Path, **options: object) -> Path:
    return fetch_checkpoint(REPO, endpoint=hub.url, cache_dir=cache, token=False, **options)


def test_a_whole_checkpoint_loads_as_the_original(hub: FakeHub, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    folder = fetch(hub, tmp_path, progress=lambda done, total: reports.append((done, total)))
    got, want = load_weights(open_checkpoint(folder)), load_weights(open_checkpoint(TINY_A))
    assert got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)
    assert hub.fetched() == {"config.json", INDEX_FILE, "tokenizer.json", "tokenizer_config.json", FIRST, SECOND}
    shards = len(hub.files[FIRST]) + len(hub.files[SECOND])
    assert reports[-1] == (shards, shards)
    assert all(done <= total for done, total in reports if total)


def test_only_the_shards_of_the_tensors_asked_for(hub: FakeHub, tmp_path: Path) -> None:
    index = json.loads(hub.files[INDEX_FILE])["weight_map"]
    names = [name for name, file in index.items() if file == SECOND and name.endswith("wq_a.weight")]
    assert names and all(index[name.replace(".weight", ".scale")] == SECOND for name in names)
    folder = fetch(hub, tmp_path, names=names)
    assert SECOND in hub.fetched() and FIRST not in hub.fetched()
    assert load_weights(open_checkpoint(folder), names).keys() == set(names)


def test_a_scale_in_another_shard_comes_along(hub: FakeHub, tmp_path: Path) -> None:
    weight, scale = "layers.0.attn.wq_a.weight", "layers.0.attn.wq_a.scale"
    index = {weight: "model-a.safetensors", scale: "model-b.safetensors", "norm.weight": "model-c.safetensors"}
    hub.files = {
        INDEX_FILE: json.dumps({"weight_map": index}).encode(),
        **{file: file.encode() for file in index.values()},
    }
    fetch(hub, tmp_path, names=[weight])
    assert hub.fetched() == {INDEX_FILE, "model-a.safetensors", "model-b.safetensors"}


def test_one_file_without_an_index(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": b"weights", "other.safetensors": b"no"}
    folder = fetch(hub, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == b"weights" and "other.safetensors" not in hub.fetched()


def test_a_broken_connection_goes_on_where_it_stopped(hub: FakeHub, tmp_path: Path) -> None:
    content = b"".join(
        number.to_bytes(4, "little") for number in range(5 * 2**20)
    )  # 20 MiB; the library writes 10 at a time
    hub.files = {"config.json": b"{}", "model.safetensors": content}
    hub.cut_at = {"model.safetensors": 15 * 2**20}
    reports: list[tuple[int, int]] = []
    folder = fetch(hub, tmp_path, progress=lambda done, total: reports.append((done, total)))
    assert (folder / "model.safetensors").read_bytes() == content
    starts = [asked for method, path, asked in hub.requests if method == "GET" and path.endswith(".safetensors")]
    assert starts == [None, f"bytes={10 * 2**20}-"]
    assert reports[-1] == (len(content), len(content))


def test_a_connection_that_always_breaks_ends_in_one_sentence(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": bytes(2**16)}
    hub.cut_at, hub.always_cut = {"model.safetensors": 1000}, True
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)  # its pause between attempts
    text = refused(hub, tmp_path)
    assert "no connection: RemoteProtocolError" in text and "finished files are kept" in text


def test_a_second_attempt_keeps_finished_files(hub: FakeHub, tmp_path: Path) -> None:
    content = hub.files.pop(SECOND)
    with pytest.raises(CheckpointErrors, match=SECOND):
        fetch(hub, tmp_path)
    hub.files[SECOND] = content
    hub.commits["main"] = "c" * 40  # the repository was repaired by a new commit
    hub.requests.clear()
    folder = fetch(hub, tmp_path)
    assert hub.fetched() == {SECOND} and folder.name == "c" * 40
    load_weights(open_checkpoint(folder))


def test_a_complete_cache_needs_no_network(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(hub, tmp_path)
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(hub, tmp_path) == folder and not hub.requests


def test_an_unreachable_hub_falls_back_to_a_complete_cache(hub: FakeHub, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path)
    hub.refusal = (503, "")
    assert fetch(hub, tmp_path) == folder


def test_both_passes_use_the_commit_the_revision_named_at_first(hub: FakeHub, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path, revision="v1")
    assert folder.name == "b" * 40
    commits = {path.split("/resolve/")[1].split("/")[0] for _, path, _ in hub.requests if "/resolve/" in path}
    assert commits == {"b" * 40}
    asked = [path for _, path, _ in hub.requests if "/revision/" in path]
    assert asked == [f"/api/models/{REPO}/revision/v1"]


def refused(hub: FakeHub, cache: Path, **options: object) -> str:
    with pytest.raises(HubError) as caught:
        fetch(hub, cache, **options)
    error = caught.value
    assert error.exit_code == 7 and error.asked and error.found and error.why and error.fix
    text = str(error)
    assert f"fetch {REPO} at revision" in text and "model.path=DIR" in text
    return text


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "RepoNotFound", "no such repository: it does not exist, or it is private"),
        (403, "GatedRepo", "access refused: the repository is gated"),
        (403, "", "access refused (HTTP 403)"),
        (500, "", "the hub answered HTTP 500"),
    ],
)
def test_refusals_say_what_why_and_what_to_do(hub: FakeHub, tmp_path: Path, status: int, code: str, said: str) -> None:
    hub.refusal = (status, code)
    assert said in refused(hub, tmp_path)


def test_a_missing_revision(hub: FakeHub, tmp_path: Path) -> None:
    text = refused(hub, tmp_path, revision="nope")
    assert "at revision nope" in text and "no such revision" in text and "check model.revision" in text


def test_no_network_and_no_cache(hub: FakeHub, tmp_path: Path) -> None:
    hub.shutdown()
    hub.server_close()
    text = refused(hub, tmp_path)
    assert "no connection" in text and "check the network" in text


def test_told_to_stay_offline_without_a_cache(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = refused(hub, tmp_path)
    assert "no complete copy in the local cache" in text and "HF_HUB_OFFLINE" in text and not hub.requests


def test_offline_with_a_part_of_the_model_only(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(hub, tmp_path, names=["norm.weight"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(hub, tmp_path)


def test_a_repository_without_weights(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(CheckpointErrors, match=r"model\.safetensors") as caught:
        fetch(hub, tmp_path)
    assert caught.value.exit_code == 5


def test_a_name_that_is_no_repository(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="write it as owner/name"):
        fetch_checkpoint("a/b/c", endpoint=hub.url, cache_dir=tmp_path, token=False)
