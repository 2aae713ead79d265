"""`deepinfer run_batch`: a line gets what the same request gets online, a bad one costs itself, and a run goes on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deepinfer.cli import serve_start
from deepinfer.cli.main import main
from deepinfer.cli.run_batch_files import BatchFiles
from deepinfer.serving.batch_file import read_lines
from deepinfer.serving.result_file import ForeignOutput

if TYPE_CHECKING:
    from running_server import Running

USER = [{"role": "user", "content": "What is 347 + 285?"}]
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for the engine, which would take most of the time."""
    monkeypatch.setattr(serve_start, "service_of", partial(serve_start.service_of, in_process=True))


def row(name: str, url: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body} | more


GOOD = [
    row("chat", "/v1/chat/completions", {"messages": USER} | GREEDY),
    row("text", "/v1/completions", {"prompt": "Once upon", "n": 2, "seed": 3, "temperature": 0.7, "max_tokens": 6}),
    row("message", "/v1/messages", {"model": "v41_tiny", "messages": USER} | GREEDY),
    row(
        "response",
        "/v1/responses",
        {"model": "v41_tiny", "input": "Who are you?", "max_output_tokens": 16, "temperature": 0, "store": False},
    ),
]
BAD: list[Any] = [
    row("unknown", "/v1/chat/completions", {"messages": USER, "colour": "red"}),
    row("nowhere", "/v1/embeddings", {}),
    row("chat", "/v1/completions", {"prompt": "x"}),
    row("streamed", "/v1/completions", {"prompt": "x", "stream": True}),
    row("extra", "/v1/completions", {"prompt": "x"}, priority=1),
    row("read", "/v1/completions", {"prompt": "x"}, method="GET"),
    row("text only", "/v1/completions", "x"),  # type: ignore[arg-type]
    {"url": "/v1/completions"},
    7,
]


def written(path: Path, rows: list[Any], *more: str) -> Path:
    path.write_text("\n".join([*map(json.dumps, rows), *more]) + "\n")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def content(body: dict[str, Any]) -> Any:
    """What is said; ids and times differ between any two answers."""
    if "output" in body:
        return [part["text"] for item in body["output"] for part in item.get("content") or ()], body["usage"]
    return body.get("choices", body.get("content")), body["usage"]


def test_a_line_gets_what_is_said_online(server: Running, tmp_path: Path) -> None:
    source, output = written(tmp_path / "in.jsonl", GOOD), tmp_path / "out.jsonl"
    assert main(["run_batch", f"input={source}", f"output={output}", "cache=prefix"]) == 0
    records = read(output)
    assert [record["custom_id"] for record in records] == ["chat", "text", "message", "response"]
    for asked, record in zip(GOOD, records):
        assert record["response"]["status_code"] == 200 and record["error"] is None and record["id"]
        online = server.post(asked["url"], asked["body"]).json()
        assert content(record["response"]["body"])[0] == content(online)[0]
    assert "632" in json.dumps(records[0]["response"]["body"])
    assert not (tmp_path / "out.errors.jsonl").read_text()


def test_bad_lines_cost_themselves_and_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "in.jsonl", [GOOD[0], *BAD], '{"custom_id": "a", "custom_id": "b"}', "{nonsense")
    output, errors = tmp_path / "out.jsonl", tmp_path / "wrong.jsonl"
    command = ["run_batch", f"input={source}", f"output={output}", f"errors={errors}"]
    assert main(command) == 1
    assert "11 requests failed" in capsys.readouterr().err
    assert [record["custom_id"] for record in read(output)] == ["chat"]
    refused, *others = read(errors)
    assert refused["response"]["status_code"] == 400 and "colour" in json.dumps(refused["response"]["body"])
    told = [record["error"]["message"] for record in others]
    for words, message in zip(
        [
            "/v1/embeddings",
            "given before",
            "stream",
            "priority",
            "GET",
            "body",
            "custom_id",
            "object",
            "twice",
            "no JSON",
        ],
        told,
    ):
        assert words in message
    before = output.read_bytes(), errors.read_bytes()
    assert main(command) == 1  # nothing is left to do, and what failed stays failed
    assert (output.read_bytes(), errors.read_bytes()) == before


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row(str(number), "/v1/completions", {"prompt": [5, number + 1], "max_tokens": 3, "seed": 1})
        for number in range(9)
    ]
    source, output = written(tmp_path / "in.jsonl", [*rows[:4], BAD[1], *rows[4:]]), tmp_path / "out.jsonl"
    command = ["run_batch", f"input={source}", f"output={output}", "task.concurrency=2"]
    assert main(command) == 1
    whole, errors = read(output), read(tmp_path / "out.errors.jsonl")
    data = output.read_bytes()
    output.write_bytes(data[: len(data) // 2])  # in the middle of a record, as a crash would
    (tmp_path / "out.errors.jsonl").write_text("")
    assert main(command) == 1
    assert "of 10 lines are done already" in capsys.readouterr().err

    def said(records: list[dict[str, Any]]) -> list[Any]:
        return [(record["line"], content(record["response"]["body"])[0]) for record in records]

    assert said(read(output)) == said(whole)
    assert (
        [record["line"] for record in read(tmp_path / "out.errors.jsonl")]
        == [record["line"] for record in errors]
        == [5]
    )
    written(source, rows)
    assert main(command) == 2
    assert "is not of this run" in capsys.readouterr().err


def test_files_that_are_missing_or_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "in.jsonl", GOOD)
    for words, told in (
        ((), "no input= is given"),
        ((f"input={tmp_path}/none", "output=x"), "no such file"),
        ((f"input={source}", f"output={tmp_path}"), "a folder"),
        ((f"input={source}", f"output={tmp_path}/a/b"), "no folder"),
        ((f"input={source}", f"output={source}"), "the same file"),
    ):
        assert main(["run_batch", *words]) == 2
        assert told in capsys.readouterr().err


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    lines = list(read_lines(written(tmp_path / "in.jsonl", GOOD)))
    with BatchFiles(tmp_path / "a", tmp_path / "b", lines), pytest.raises(ForeignOutput, match="another run"):
        BatchFiles(tmp_path / "a", tmp_path / "c", lines)
    (tmp_path / "a").write_text("somebody's notes\n")
    with pytest.raises(ForeignOutput, match="no record"):
        BatchFiles(tmp_path / "a", tmp_path / "b", lines)
    assert (tmp_path / "a").read_text() == "somebody's notes\n"
