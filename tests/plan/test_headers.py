"""Checkpoint folders: what their headers say, and what is said of broken ones. Raises nothing, whatever lies there."""

import json
from pathlib import Path

import pytest

from deepinfer.config import headers
from deepinfer.config.headers import read_checkpoint


def shard(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """A safetensors file by hand."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards with an index and a config."""
    shard(tmp_path / "a.safetensors", {"x": ("BF16", [2, 2], bytes(8)), "y": ("F32", [1], bytes(4))})
    shard(tmp_path / "b.safetensors", {"z": ("I8", [3], bytes(3))})
    weight_map = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (tmp_path / headers.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v41"}')
    return tmp_path


def test_headers(folder: Path) -> None:
    facts = read_checkpoint(folder)
    assert facts.problems == ()
    assert facts.config == {"model_type": "deepseek_v41"}
    assert {name: (t.dtype, t.shape) for name, t in facts.tensors.items()} == {
        "x": ("BF16", (2, 2)),
        "y": ("F32", (1,)),
        "z": ("I8", (3,)),
    }
    assert facts.num_bytes == 15
    assert facts.files == ("a.safetensors", "b.safetensors")


def test_without_an_index_every_shard_is_read(folder: Path) -> None:
    whole = read_checkpoint(folder)
    (folder / headers.INDEX).unlink()
    assert read_checkpoint(folder).tensors == whole.tensors


def test_tensors_are_optional(folder: Path) -> None:
    facts = read_checkpoint(folder, with_tensors=False)
    assert facts.config and not facts.tensors and not facts.files and not facts.digest


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[1]"), "config.json cannot be read: it holds a list"),
        (lambda f: (f / headers.INDEX).write_text("{}"), "index.json cannot be read"),
        (lambda f: (f / "b.safetensors").write_bytes(b"abc"), "b.safetensors cannot be read: header length"),
        (lambda f: (f / "b.safetensors").write_bytes(b""), "b.safetensors cannot be read"),
        (lambda f: (f / "b.safetensors").write_bytes((9).to_bytes(8, "little") + b"not json!"), "b.safetensors"),
        (lambda f: (f / "a.safetensors").write_bytes((f / "a.safetensors").read_bytes()[:-1]), "it ends 1 bytes early"),
        (lambda f: shard(f / "b.safetensors", {"x": ("I8", [1], b"1")}), "x is in more than one shard"),
    ],
)
def test_what_is_broken_is_said(folder: Path, break_it: object, sentence: str) -> None:
    break_it(folder)  # type: ignore[operator]
    (problem,) = read_checkpoint(folder).problems
    assert sentence in problem


def test_a_shard_that_is_not_there_is_a_fact(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    facts = read_checkpoint(folder)
    assert (facts.files, facts.missing_files, facts.problems) == (("a.safetensors",), ("b.safetensors",), ())


def test_no_folder(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "nowhere").problems == ("the folder does not exist",)


def test_the_digest_follows_one_byte_and_not_the_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    digest = read_checkpoint(folder).digest
    elsewhere = tmp_path_factory.mktemp("copy") / "model"
    elsewhere.mkdir()
    for file in folder.iterdir():
        (elsewhere / file.name).write_bytes(file.read_bytes())
    assert read_checkpoint(elsewhere).digest == digest
    content = bytearray((elsewhere / "a.safetensors").read_bytes())
    content[-1] ^= 1
    (elsewhere / "a.safetensors").write_bytes(content)
    assert read_checkpoint(elsewhere).digest != digest


def test_large_shards_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "WHOLE_FILE_BYTES", 1000)
    shard(tmp_path / "a.safetensors", {"x": ("I8", [10**6], bytes(10**6))})
    digest = read_checkpoint(tmp_path).digest
    content = bytearray((tmp_path / "a.safetensors").read_bytes())
    for place in (len(content) - 1, 100, 0):  # the last sample, the header, and back
        content[place] ^= 1
        (tmp_path / "a.safetensors").write_bytes(content)
        assert read_checkpoint(tmp_path).digest != digest
