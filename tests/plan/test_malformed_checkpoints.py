"""Checkpoint folders that are spoiled: a sentence for each, whatever lies there, and nothing is opened outside them."""

import json
import os
from pathlib import Path

import pytest

from deepinfer.cli.main import main
from deepinfer.config import headers
from deepinfer.config.errors import ExitCode
from deepinfer.config.headers import read_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two good shards, an index and a config."""
    raw_header(tmp_path / "a.safetensors", {"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})
    raw_header(tmp_path / "b.safetensors", entry())
    (tmp_path / headers.INDEX).write_text(json.dumps({"weight_map": {"w": "a.safetensors", "x": "b.safetensors"}}))
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v41"}')
    return tmp_path


def raw_header(path: Path, header: object) -> None:
    """A shard with any header at all and two bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"12")


def entry(**changes: object) -> dict[str, object]:
    """A header of one tensor, x, with some of its keys changed, or left out where the change is `...`."""
    whole = {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]} | changes
    return {"x": {key: value for key, value in whole.items() if value is not ...}}


def nested(depth: int) -> bytes:
    return b'{"x":' + b"[" * depth + b"]" * depth + b"}"


HEADERS: list[tuple[str, object, str]] = [
    ("no dtype", entry(dtype=...), "gives x no dtype"),
    ("dtype is a number", entry(dtype=5), "gives x no dtype"),
    ("no shape", entry(shape=...), "gives x no shape"),
    ("shape is a number", entry(shape=5), "gives x no shape"),
    ("shape of texts", entry(shape=["2"]), "gives x no shape"),
    ("shape of truths", entry(shape=[True]), "gives x no shape"),
    ("negative shape", entry(shape=[-2]), "gives x no shape"),
    ("fractional shape", entry(shape=[2.0]), "gives x no shape"),
    ("enormous shape", entry(shape=[2**64]), "gives x no shape"),
    ("no offsets", entry(data_offsets=...), "gives x no data_offsets"),
    ("one offset", entry(data_offsets=[0]), "gives x no data_offsets"),
    ("three offsets", entry(data_offsets=[0, 1, 2]), "gives x no data_offsets"),
    ("offsets of texts", entry(data_offsets=["0", "2"]), "gives x no data_offsets"),
    ("offsets are null", entry(data_offsets=None), "gives x no data_offsets"),
    ("offsets backwards", entry(data_offsets=[2, 0]), "ends x before its begin"),
    ("offsets beyond the end", entry(data_offsets=[0, 9]), "it ends 7 bytes early"),
    ("entry is a number", {"x": 5}, "no object for x"),
    ("entry is null", {"x": None}, "no object for x"),
    ("metadata is a list", entry() | {"__metadata__": [1]}, "__metadata__ is not an object of texts"),
    ("metadata of numbers", entry() | {"__metadata__": {"format": 1}}, "__metadata__ is not an object of texts"),
    ("a long name", {"x" * 5000: 5}, "… (5,000 characters)"),
    ("a name that cannot be printed", b'{"\\ud800": 5}', "no object for '\\ud800'"),
    ("a list", [1], "it holds a list"),
    ("no JSON", b"{]", "it is not JSON"),
    ("no UTF-8", b'{"\xff": 1}', "it is not UTF-8 (byte 2 is 0xff)"),
    ("nested without end", nested(100_000), "it is nested too deeply"),
    ("nested somewhat too deeply", nested(100), "it is nested too deeply"),
    ("a number of 5,000 digits", b'{"x": ' + b"9" * 5000 + b"}", "digits"),
]


@pytest.mark.parametrize(("header", "sentence"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_malformed_header(folder: Path, header: object, sentence: str) -> None:
    raw_header(folder / "b.safetensors", header)
    (problem,) = read_checkpoint(folder).problems
    assert problem.startswith("b.safetensors cannot be read: ")
    assert sentence in problem
    problem.encode()


LONG = "a" * 5000 + ".safetensors"
NOT_PLAIN = "which is not the plain name of a .safetensors file"
INDEXES: list[tuple[str, object, str]] = [
    ("a list", [], "it holds a list"),
    ("no map", {"weight_map": None}, "it has no weight_map"),
    ("a list for a map", {"weight_map": ["a.safetensors"]}, "it has no weight_map"),
    ("an empty map", {"weight_map": {}}, "it has no weight_map"),
    ("a number for a file", {"weight_map": {"x": 5}}, f"names 5 for x, {NOT_PLAIN}"),
    ("null for a file", {"weight_map": {"x": None}}, f"names None for x, {NOT_PLAIN}"),
    ("a list for a file", {"weight_map": {"x": ["a"]}}, f"names ['a'] for x, {NOT_PLAIN}"),
    ("a file above", {"weight_map": {"x": "../outside.safetensors"}}, NOT_PLAIN),
    ("a file below", {"weight_map": {"x": "below/a.safetensors"}}, NOT_PLAIN),
    ("an absolute path", {"weight_map": {"x": "/outside.safetensors"}}, NOT_PLAIN),
    ("another drive", {"weight_map": {"x": "..\\outside.safetensors"}}, NOT_PLAIN),
    ("a NUL", {"weight_map": {"x": "a\0.safetensors"}}, NOT_PLAIN),
    ("another ending", {"weight_map": {"x": "config.json"}}, NOT_PLAIN),
    ("no name", {"weight_map": {"x": ""}}, f"names '' for x, {NOT_PLAIN}"),
    ("a name too long", {"weight_map": {"x": LONG}}, "File name too long"),
    ("a name that no system spells", {"weight_map": {"x": "\ud800.safetensors"}}, "surrogates not allowed"),
    ("nested without end", nested(100_000), "it is nested too deeply"),
    ("no UTF-8", b"\xff", "it is not UTF-8"),
]


@pytest.mark.parametrize(("index", "sentence"), [row[1:] for row in INDEXES], ids=[row[0] for row in INDEXES])
def test_malformed_index(folder: Path, index: object, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside the folder is opened or even looked for on the word of an index."""
    looked_at: list[Path] = []
    look = headers.os.stat
    monkeypatch.setattr(headers.os, "stat", lambda path: looked_at.append(Path(path)) or look(path))
    (folder / headers.INDEX).write_bytes(index if isinstance(index, bytes) else json.dumps(index).encode())
    (problem,) = read_checkpoint(folder).problems
    assert sentence in problem
    problem.encode()
    assert {path.parent for path in looked_at if path != folder} == {folder}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", headers.INDEX])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff", "it is not UTF-8 (byte 0 is 0xff)"),
        (nested(100_000), "it is nested too deeply"),
        (nested(100), "it is nested too deeply"),
        (b"null", "it holds a NoneType, not an object"),
        (None, "it is not a regular file"),
    ],
)
def test_malformed_json(folder: Path, name: str, content: bytes | None, sentence: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if content is None:
        os.mkfifo(folder / name)  # reading it would never end
    else:
        (folder / name).write_bytes(content)
    assert read_checkpoint(folder).problems == (f"{name} cannot be read: {sentence}",)


def test_many_faults_of_one_kind_are_cut_short(folder: Path) -> None:
    (folder / headers.INDEX).write_text(json.dumps({"weight_map": {f"x{i}": 5 for i in range(1000)}}))
    problems = read_checkpoint(folder).problems
    assert len(problems) == headers.SHOWN_PROBLEMS + 1
    assert problems[-1] == f"… and {1000 - headers.SHOWN_PROBLEMS} more of this kind"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("a" * 5000, "the folder cannot be opened: File name too long"),
        ("a\0b", "the folder cannot be opened: embedded null byte"),
        ("config.json", "it is a file; give the folder that holds config.json"),
        ("config.json/below", "the folder does not exist"),
    ],
)
def test_what_is_no_folder(folder: Path, path: str, sentence: str) -> None:
    assert read_checkpoint(folder / path).problems == (sentence,)


def test_malformed_checkpoints_end_a_plan_with_the_exit_code_of_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / headers.INDEX).write_text('{"weight_map": {"x": "../outside.safetensors"}}')
    (folder / "config.json").write_bytes(nested(100_000))
    assert main(["plan", f"model.path={folder}"]) == ExitCode.WEIGHTS
    printed = "".join(capsys.readouterr())
    assert "nested too deeply" in printed and NOT_PLAIN in printed and "Traceback" not in printed
