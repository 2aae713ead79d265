"""benchmarks/kernels.py: which files it runs, what it keeps where some fail; lines of failed tests are not written."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kernel_lines
import pytest
import torch
from kernel_line_cases import line

TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
TIMED = """
import device_timer, torch
device_timer.time_calls = lambda calls, runs, graph: {name: device_timer.Spread(2.0, 1.0, 3.0) for name in calls}
torch.cuda.get_device_name = lambda: "a GPU"


def test_speed_that_passes(timed):
    timed("good", "case", [], flops=1e6, peers={"other": [], "third": "is absent"}, target="≤ 3 µs")


def test_speed_that_fails_afterwards(timed):
    timed("bad", "case", [])
    assert False
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    with pytest.raises(SystemExit, match=r"no CUDA device here: .* type: python -m deepinfer doctor"):
        timing_command().main()


def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[tuple[str, list[Any], str]]) -> Path:
    """Types `kernels.py --record` where the test files give these lines and failures; returns the results file."""
    command = timing_command()
    found = {Path(name): command.Ran(Path(name), lines, failure) for name, lines, failure in ran}
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--record"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command.record, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "timing_files", lambda only: list(found))
    monkeypatch.setattr(command, "run", lambda file, only, seconds: found[file])
    command.main()
    return tmp_path / "kernels.jsonl"


def test_where_nothing_was_timed_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing was timed: no GPU test timed anything"):
        recorded(monkeypatch, tmp_path, [("test_a.py", [], "")])


def test_a_failing_file_costs_its_own_lines_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"not all of it:\ntest_b\.py: stopped after 60 s"):
        recorded(
            monkeypatch, tmp_path, [("test_b.py", [line()], "stopped after 60 s"), ("test_c.py", [line("top_k")], "")]
        )
    assert [one["op"] for one in kernel_lines.read(tmp_path / "kernels.jsonl")] == ["fp8_linear", "top_k"]


def test_a_file_is_stopped_in_time_and_a_broken_one_shows_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = timing_command()
    slow, broken = tmp_path / "test_slow.py", tmp_path / "test_broken.py"
    slow.write_text("import time\ntime.sleep(60)\n")
    broken.write_text("import no_such_module\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): parser.addoption('--time')\n")
    assert command.run(slow, [], 1.0).failure.startswith("stopped after 1 s")
    assert "ERROR" in command.run(broken, [], 60.0).failure


def test_only_files_that_time_something_are_run() -> None:
    names = [file.name for file in timing_command().timing_files()]
    assert "test_fp8_linear.py" in names and "test_kernels_report.py" not in names
    assert [file.name for file in timing_command().timing_files(["top_entries"])] == ["test_top_entries.py"]


def test_the_printed_table_has_a_row_a_line() -> None:
    shown = timing_command().table([line(), line("top_k", "512 of 16384", target="")])
    assert shown.row_count == 2
    assert list(shown.columns[6].cells) == ["≥ 600 TF: reached (636 TF)", ""]
    assert kernel_lines.notices([line(), line()]) == ["deep_gemm_fp8: deep_gemm is not installed"]


def timing_command() -> ModuleType:
    """benchmarks/kernels.py: the repository's folder `kernels` has the same name."""
    spec = importlib.util.spec_from_file_location("timing_command", BENCHMARKS / "kernels.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_lines_of_tests_that_fail_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "conftest.py").write_text((TESTS / "kernels" / "conftest.py").read_text())
    (tmp_path / "kernels" / "test_it.py").write_text(TIMED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--time", "lines.jsonl", "kernels"]
    paths = os.pathsep.join((str(BENCHMARKS), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    (found,) = kernel_lines.read(tmp_path / "lines.jsonl")
    assert (found["op"], found["ratios"], found["absent"]) == ("good", {"other": 1.0}, {"third": "is absent"})
    assert found["test"] == "test_it.py::test_speed_that_passes" and kernel_lines.reached(found)
