"""Closed standard streams, and streams whose encoding lacks what is printed."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.cli.help import render_help
from deepinfer.cli.streams import printable_json, read_stdin

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(command: str, **environment: str) -> subprocess.CompletedProcess:
    line = f'"{sys.executable}" -m deepinfer {command}'
    return subprocess.run(["sh", "-c", line], capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_take_nothing_and_cost_nothing(redirection: str) -> None:
    done = shell(f"plan model.path={GOLDEN} {redirection}")
    assert (done.returncode, done.stderr) == (0, b"") and bool(done.stdout) == (redirection == "2>&-")


def test_a_prompt_from_a_closed_stdin_is_refused() -> None:
    done = shell(f"model.path={GOLDEN} prompt=- <&-")
    assert done.returncode == 2 and b"stdin is closed" in done.stderr and b"Traceback" not in done.stderr


def test_bytes_that_are_no_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for errors in ("strict", "surrogateescape"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), "utf-8", errors))
        with pytest.raises(ValueError, match="not utf-8"):
            read_stdin()
    done = shell("plan prompt=$(printf '\\377')")
    assert done.returncode == 2 and b"not UTF-8" in done.stderr and b"\\udcff" in done.stderr


def test_a_plan_can_be_printed_in_ascii() -> None:
    text = shell(f"plan model.path={GOLDEN}", **ASCII)
    assert text.returncode == 0 and text.stdout.isascii() and text.stderr == b""
    written = shell(f"plan format=json model.path={GOLDEN}", **ASCII)
    assert written.returncode == 0 and json.loads(written.stdout)["graph"] and written.stdout.isascii()


def test_json_keeps_its_meaning_on_any_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"é": "× 😀"}, ensure_ascii=False)
    assert printable_json(text) == text
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert printable_json(text).isascii() and json.loads(printable_json(text)) == json.loads(text)


def test_help_marks_what_cannot_run_yet() -> None:
    marked = {line.split()[0] for line in render_help().splitlines() if line.endswith("(planned)")}
    assert {"deepseek", "disaggregated", "b200", "ascend950", "gb300"} <= marked
    assert not marked & {
        "cpu",
        "h200",
        "triton",
        "single",
        "ep2",
        "cp2",
        "distributed",
        "eplb",
        "none",
        "paged",
        "auto",
        "colocated",
        "dspark",
        "prefix",
        "compact",
        "llguidance",
    }
