"""`deepinfer plan format=json` as a linter: refusals are JSON on stdout, with file and line, and an exit code per class."""

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.main import main


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *arguments, "format=json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


@pytest.mark.parametrize(
    ("arguments", "code", "asked", "fix"),
    [
        (("parallel=ep46",), 2, "parallel=ep46", "parallel=ep64"),
        (("model=v41_tiny", "parallel.expert=3"), 3, "parallel.expert=3", "parallel=ep2"),
        (("model.path=/nowhere/at/all",), 5, "model.path=/nowhere/at/all", ""),
        (("hardware=h200", "model.weights=dummy"), 6, "model=v41_flash on NVIDIA H200 SXM, 1 rank", "parallel=ep4"),
    ],
)
def test_a_refusal(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, asked: str, fix: str
) -> None:
    found, said = lint(capsys, *arguments)
    assert found == said["exit_code"] == code
    problem = said["problems"][0]
    assert set(problem) == {"asked", "found", "why", "fix", "code", "file", "line"}
    assert (problem["asked"], problem["fix"], problem["code"]) == (asked, fix, code)
    assert (problem["file"], problem["line"]) == ("", 0)


def test_file_and_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of a value that cannot be, and of one that cannot be planned."""
    file = tmp_path / "cluster" / "site.yaml"
    file.parent.mkdir()
    text = "# @package _global_\ncluster: {kind: none}\nscheduler:\n  max_num_seq: 4\nsampling:\n  n: 0\n"
    file.write_text(text)
    code, said = lint(capsys, "--config-dir", str(tmp_path), "cluster=site")
    places = {problem["asked"]: (problem["file"], problem["line"]) for problem in said["problems"]}
    assert code == 2 and places == {"scheduler.max_num_seq=4": (str(file), 4), "sampling.n=0": (str(file), 6)}
    file.write_text("# @package _global_\ncluster: {kind: none}\nparallel:\n  expert: 3\n")
    code, said = lint(capsys, "--config-dir", str(tmp_path), "cluster=site", "model=v41_tiny")
    assert code == 3
    assert {(problem["file"], problem["line"]) for problem in said["problems"]} == {(str(file), 4)}


def test_a_plan_is_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = lint(capsys, "model=v41_tiny", "model.weights=dummy")
    assert code == 0 and "problems" not in plan and plan["model"]["name"] == "v41_tiny"


def test_text_where_it_was_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "parallel=ep46"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("deepinfer: 1 problem:\n")


def test_help_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("format=", "explain=", "diff=", "out=", "problems", "file", "line"):
        assert word in text
