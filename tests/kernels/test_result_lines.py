"""Files of measurements: what a killed writer leaves behind, and lines that are none."""

import json
import sys
from pathlib import Path
from typing import Any

import kernels_report
import pytest
import result_lines
import torch
from kernel_line_cases import line
from markers import misplaced
from test_kernels_command import timing_command


def ops(path: Path) -> list[str]:
    return [one["op"] for one in result_lines.read(path)]


def test_half_a_line_at_the_end_is_left_out_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    result_lines.add(path, [line("a"), line("b")])
    for cut in range(1, len(json.dumps(line("b"))) - 1, 97):
        path.write_bytes(path.read_bytes()[: -1 - cut])
        assert ops(path) == ["a"]
        result_lines.add(path, [line("b")])
        assert ops(path) == ["a", "b"]


def test_a_last_line_without_its_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(line("a")))
    assert ops(path) == ["a"]
    result_lines.add(path, [line("b")])
    assert ops(path) == ["a", "b"] and path.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"op": "a", "ca', "is no JSON object"),
        ("[1, 2]", "is no JSON object"),
        ("\udcff\udcfe", "is no JSON object"),
        ('{"op": "a"}', r"lacks case, bound, device, .*, versions"),
        (json.dumps(line(median_us="540")), "has other than what is measured in median_us"),
        (json.dumps(line(median_us=0)), "has a time of nothing"),
        (json.dumps(line(share=float("nan"))), "has a time of nothing, or a number without bound"),
        (json.dumps(line(ratios={})), "has a time or a ratio alone of cublas_bf16"),
    ],
)
def test_a_line_that_is_no_measurement_is_told_by_its_place(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps(line()), text, json.dumps(line())]
    (tmp_path / "kernels.jsonl").write_bytes("".join(f"{one}\n" for one in lines).encode(errors="surrogateescape"))
    monkeypatch.setattr(kernels_report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["kernels_report.py", "--check"])
    with pytest.raises(SystemExit, match=rf"no tables: line 2 of kernels\.jsonl {said}.*; take it out"):
        kernels_report.main()


def test_a_target_that_cannot_be_read_makes_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result_lines.add(tmp_path / "kernels.jsonl", [line(target="fast")])
    monkeypatch.setattr(kernels_report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["kernels_report.py", "--check"])
    with pytest.raises(SystemExit, match="no tables: target 'fast' of fp8_linear: write ≥, ≤ or within"):
        kernels_report.main()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("a [ b ] c", ""),
        ("a ] b", "lacks the lines"),
        ("] [", "has ] before ["),
        ("[ ] [ ]", "has [ or ] more than once"),
    ],
)
def test_a_table_has_one_place(page: str, said: str) -> None:
    assert misplaced(page, "[", "]").startswith(said) and bool(misplaced(page, "[", "]")) == bool(said)


def test_what_was_timed_before_a_kill_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = timing_command()

    def run(file: Path, only: list[str], seconds: float) -> Any:
        if file.name == "test_b.py":
            raise SystemExit("killed")
        return command.Ran(file, [line("a")], "")

    monkeypatch.setattr(sys, "argv", ["kernels.py", "--record"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command.record, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "timing_files", lambda only: [Path("test_a.py"), Path("test_b.py")])
    monkeypatch.setattr(command, "run", run)
    with pytest.raises(SystemExit, match="killed"):
        command.main()
    assert ops(tmp_path / "kernels.jsonl") == ["a"]


def test_where_nothing_can_be_recorded_nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = timing_command()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--record"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command.record, "RESULTS", tmp_path / "file" / "results")
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("timed"))
    with pytest.raises(
        SystemExit, match=r"nothing was timed: --record adds to .*kernels\.jsonl, which cannot be written"
    ):
        command.main()


@pytest.mark.parametrize("words", [["--only", "top k"], ["--only", "a("], ["--only", "not"], ["--seconds", "0"],
                                   ["--seconds", "nan"], ["--seconds", "-1"], ["--seconds", "soon"]])  # fmt: skip
def test_words_and_seconds_that_nothing_takes(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels.py", *words])
    with pytest.raises(SystemExit):
        timing_command().main()
    assert f"{words[1]!r} is no " in capsys.readouterr().err
