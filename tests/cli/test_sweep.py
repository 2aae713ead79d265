"""-m: which points there are, what becomes of each, and what a second run of the same command does."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from deepinfer.cli import sweep as sweep_module
from deepinfer.cli import sweep_run
from deepinfer.cli.help import options
from deepinfer.cli.main import main
from deepinfer.cli.points_file import FILE
from deepinfer.cli.sweep_points import files_digest
from deepinfer.config.argv import CommandLine
from deepinfer.config.compose import load
from deepinfer.config.specs import Spec
from deepinfer.config.sweeps import NoSweep

Rows = list[dict[str, Any]]


class InThisProcess:
    """A run of a sweep without the half second that a process of its own takes to start."""

    outcome: Callable[[list[str]], tuple[int, str, str]]
    started: list[list[str]]

    def __init__(self, command: list[str], *, stdout: Any, stderr: Any, **_: object) -> None:
        arguments = command[3:]
        type(self).started.append(arguments)
        self.code, printed, said = type(self).outcome(arguments)
        stdout.write(printed.encode())
        stderr.write(said.encode())

    stdin = None

    def poll(self) -> int:
        return self.code

    wait = poll

    def send_signal(self, _: int) -> None:
        raise AssertionError("nothing of this kind runs for long")


def planned(arguments: list[str]) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[InThisProcess]]:
    InThisProcess.outcome, InThisProcess.started = staticmethod(planned), []
    monkeypatch.setattr(sweep_run, "Popen", InThisProcess)
    yield InThisProcess


@pytest.fixture(scope="session")
def default_spec() -> Spec:
    return load()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch, default_spec: Spec) -> None:
    """Overrides are not composed before the first run: these tests are about what comes after."""

    def spec_of(line: CommandLine) -> tuple[Spec, dict[str, str]]:
        stops = "sweep.stop_on_failure=true" in line.overrides
        return structs.replace(default_spec, sweep=NoSweep(stop_on_failure=stops)), {}

    monkeypatch.setattr(sweep_module, "checked", spec_of)


def ends_with(*codes: int, said: str = "deepinfer: it broke\n") -> Callable[[list[str]], tuple[int, str, str]]:
    waiting = iter(codes)

    def outcome(_: list[str]) -> tuple[int, str, str]:
        code = next(waiting)
        return code, "", said if code else ""

    return staticmethod(outcome)


def rows_in(folder: Path) -> Rows:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_each_point_is_a_process_with_a_log_and_a_row(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer", "plan", "-m", "hardware=h200,gb200", "parallel=single,ep8", "out=kept"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 6, done.stderr
    table = done.stdout.splitlines()
    assert table[0].split()[:3] == ["hardware", "parallel", "ranks"] and table[0].split()[-2:] == ["exit", "why"]
    assert [line.lstrip("* ").split()[:2] for line in table[3:7]] == [
        [hardware, parallel] for hardware in ("h200", "gb200") for parallel in ("single", "ep8")
    ]
    assert " 6  model=v41_flash on NVIDIA H200 SXM, 1 rank: the rank would hold " in table[3]
    assert "hardware=h200 parallel=single (kept/jobs/0001.log)" in done.stderr and "type: parallel=ep4" in done.stderr
    assert "2 of 4 runs ended well" in done.stderr
    rows = rows_in(tmp_path / "kept")
    assert sorted(row["number"] for row in rows) == [1, 2, 3, 4]
    assert {row["exit_code"] for row in rows} == {0, 6}
    assert all(row["facts"]["num_ranks"] == 8 for row in rows if row["exit_code"] == 0)
    log = (tmp_path / "kept" / "jobs" / "0001.log").read_text()
    assert log.startswith("$ deepinfer hardware=h200 parallel=single task=plan format=json\n") and "problem" in log


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deepinfer", "plan", "-m", "scheduler.max_num_seqs=range(1,4)", "out=kept"]
    file = tmp_path / "kept" / FILE
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        ends_s = time.monotonic() + 240
        while not (file.is_file() and file.read_bytes().endswith(b"\n")) and time.monotonic() < ends_s:
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGINT)
        out, err = first.communicate(timeout=240)
    assert first.returncode == 130, err
    kept = rows_in(tmp_path / "kept")
    assert 1 <= len(kept) < 3
    assert f"{len(kept)} of 3 points are kept; the same command with out=kept goes on" in err
    assert "Traceback" not in err and len(out.splitlines()) >= 2 + len(kept)
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert second.returncode == 0, second.stderr
    assert f"3 points, results in kept, {len(kept)} of them settled by an earlier run" in second.stderr
    rows = rows_in(tmp_path / "kept")
    assert rows[: len(kept)] == kept and sorted(row["swept"]["scheduler.max_num_seqs"] for row in rows) == list("123")


@pytest.mark.usefixtures("unchecked")
def test_points_come_in_the_order_typed(processes: type[InThisProcess], tmp_path: Path) -> None:
    """None stops the others; the lowest failing class is the result; free text is not swept over."""
    processes.outcome = ends_with(0, 6, 1, 3)
    swept = ("parallel=ep2,ep4", "sampling.n=1,2", "model.path=a,b")
    assert main(["doctor", "hardware=h200", "-m", *swept, f"out={tmp_path}"]) == 3
    assert processes.started == [
        ["hardware=h200", f"parallel={parallel}", f"sampling.n={n}", "task=doctor", "model.path=a,b"]
        for parallel in ("ep2", "ep4")
        for n in (1, 2)
    ]
    assert [row["swept"] for row in rows_in(tmp_path)][1] == {"parallel": "ep2", "sampling.n": "2"}


@pytest.mark.usefixtures("unchecked")
def test_a_failure_is_told_before_the_next_run_starts(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def outcome(arguments: list[str]) -> tuple[int, str, str]:
        told.append(capsys.readouterr().err)
        return 5, "", f"Traceback (most recent call last):\n  file\nValueError: weights of {arguments[0]}\n"

    processes.outcome = staticmethod(outcome)
    assert main(["-m", "sampling.seed=4,5", f"out={tmp_path}"]) == 5
    assert "run 1 ended with exit code 5: sampling.seed=4" in told[1] and "weights of sampling.seed=4" in told[1]
    assert "ValueError: weights of sampling.seed=5" in (tmp_path / "jobs" / "0002.log").read_text()
    assert [row["refusal"] for row in rows_in(tmp_path)][1] == "ValueError: weights of sampling.seed=5"


@pytest.mark.usefixtures("unchecked")
def test_of_a_long_message_the_part_that_tells_is_shown(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "".join(f"line {number}\n" for number in range(30))
    for number, (text, shown, hidden) in enumerate(
        [(said, "line 0", "line 29"), ("Traceback (most recent call last):\n" + said, "line 29", "line 0")]
    ):
        processes.outcome = ends_with(1, said=text)
        assert main(["-m", f"sampling.seed={number}", f"out={tmp_path}"]) == 1
        told = capsys.readouterr().err.partition("ended with")[2].partition("exit  why")[0]
        assert shown in told and hidden not in told
        assert "…" in told


@pytest.mark.usefixtures("unchecked")
def test_stop_on_failure_starts_no_other(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.outcome = ends_with(0, 3, 0, 0)
    command = ["doctor", "-m", "sampling.seed=1,2,3,4", "sweep.stop_on_failure=true", f"out={tmp_path}"]
    assert main(command) == 3
    assert len(processes.started) == 2
    assert "1 of 4 runs ended well, 2 were not started" in capsys.readouterr().err
    assert main(command) == 3  # the failure is known; nothing starts until it is taken back
    assert len(processes.started) == 2


@pytest.mark.usefixtures("unchecked")
def test_resume_takes_settled_points_only(processes: type[InThisProcess], tmp_path: Path) -> None:
    processes.outcome = ends_with(0, 6, 1, 5, 0, 7)
    command = ["doctor", "-m", "sampling.seed=1,2,3,4", f"out={tmp_path}"]
    assert main(command) == 5
    assert main(command) == 6  # 3 well, 7 failed again; the 6 of before still counts
    assert [arguments[0] for arguments in processes.started[4:]] == ["sampling.seed=3", "sampling.seed=4"]
    assert [row["number"] for row in rows_in(tmp_path)] == [1, 2, 3, 4, 5, 6]
    processes.outcome = ends_with(0, 0)
    assert main(["doctor", "-m", "sampling.seed=1,2,4,5", f"out={tmp_path}"]) == 6
    assert [arguments[0] for arguments in processes.started[6:]] == ["sampling.seed=4", "sampling.seed=5"]


@pytest.mark.usefixtures("unchecked")
def test_an_edited_file_makes_other_points(processes: type[InThisProcess], tmp_path: Path) -> None:
    own = tmp_path / "own" / "sampling" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("top_k: 3\n")
    before = files_digest(f"{tmp_path / 'own'}")
    command = [
        "doctor",
        "-m",
        "--config-dir",
        f"{tmp_path / 'own'}",
        "sampling=mine,greedy",
        f"out={tmp_path / 'kept'}",
    ]
    processes.outcome = ends_with(0, 0, 0, 0)
    assert main(command) == main(command) == 0
    assert len(processes.started) == 2
    own.write_text("top_k: 4\n")
    assert main(command) == 0
    assert len(processes.started) == 4
    assert files_digest(f"{tmp_path / 'own'}") != before != files_digest(None)


@pytest.mark.usefixtures("unchecked")
def test_a_line_cut_short_by_a_kill_runs_again(processes: type[InThisProcess], tmp_path: Path) -> None:
    processes.outcome = ends_with(0, 0, 0)
    command = ["doctor", "-m", "sampling.seed=1,2", f"out={tmp_path}"]
    assert main(command) == 0
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-30])
    assert main(command) == 0
    assert processes.started[2][0] == "sampling.seed=2"
    assert len(file.read_bytes().splitlines()) == 3  # the new row does not hang on the broken one


@pytest.mark.usefixtures("unchecked")
def test_ranges_globs_and_groups_of_ones_own(processes: type[InThisProcess], tmp_path: Path) -> None:
    own = tmp_path / "own" / "tune"
    own.mkdir(parents=True)
    for name in ("hot", "cold"):
        (own / f"{name}.yaml").write_text(f"# @package _global_\nsampling:\n  top_k: {len(name)}\n")
    processes.outcome = ends_with(*[0] * 20)
    assert main(["-m", "parallel=glob(ep*,exclude=ep1*)", f"out={tmp_path / 'a'}"]) == 0
    wanted = [name for name in options("parallel") if name.startswith("ep") and not name.startswith("ep1")]
    assert [each[0] for each in processes.started] == [f"parallel={name}" for name in sorted(wanted)]
    assert {"ep2", "ep64"} <= set(wanted)
    processes.started.clear()
    assert main(["-m", "--config-dir", f"{tmp_path / 'own'}", "+tune=glob(*)", f"out={tmp_path / 'b'}"]) == 0
    assert [each[:3] for each in processes.started] == [
        ["--config-dir", f"{tmp_path / 'own'}", f"+tune={name}"] for name in ("cold", "hot")
    ]
    processes.started.clear()
    assert main(["-m", "scheduler.max_num_seqs=range(1,9,3)", f"out={tmp_path / 'c'}"]) == 0
    assert [each[0] for each in processes.started] == [f"scheduler.max_num_seqs={n}" for n in (1, 4, 7)]


def test_what_only_some_combinations_cannot_have_is_a_row(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "-m", "parallel=ep8,ep4", "parallel.expert=8,4", "hardware=h200", f"out={tmp_path}"]
    assert main(command) == 3
    assert [row["exit_code"] for row in rows_in(tmp_path)] == [0, 0, 3, 0]
    assert "4 ranks" in capsys.readouterr().out.splitlines()[5]


def test_one_point_is_a_table_of_one_row(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-m", "hardware=h200", "parallel=ep8", f"out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "ranks" and lines[3].split()[:2] == ["*", "8"] and lines[4].startswith("* on the")
    assert main(["plan", "-m", "hardware=h200", "parallel=ep8", "format=json", f"out={tmp_path}"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row == rows_in(tmp_path)[0] and len(processes.started) == 1


def test_figures_carry_their_label(
    processes: type[InThisProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-m", "hardware=h200,b200", "parallel=ep8", f"out={tmp_path}"]) == 0
    table = capsys.readouterr().out.splitlines()
    figures = rows_in(tmp_path)[0]["figures"]
    assert "decode_tokens" in table[0] and table[1].split().count("_per_s_per_gpu") == 2
    assert all(len(line) <= 120 for line in table[:5])
    assert len(figures) == 6
    assert {figure["label"] for figure in figures} == set(table[2].split()) - {"GB", "a", "rank", "tokens"}
    code, printed, _ = planned(["plan", "hardware=h200", "parallel=ep8", "format=json"])
    assert code == 0 and json.loads(printed)["cost"]["headline"] == figures


@pytest.mark.sample(1)
@pytest.mark.parametrize("swept", ["plain,swept", "placed,plain", "plain,launched"])
def test_a_swept_file_may_not_change_the_sweep(processes: type[InThisProcess], tmp_path: Path, swept: str) -> None:
    """Neither a sweep of its own nor a launcher or run folder: refused before the first run."""
    texts = {
        "swept": "hydra:\n  sweeper:\n    params:\n      sampling.seed: 1,2\n",
        "placed": "hydra:\n  run:\n    dir: elsewhere\n",
        "plain": "sampling:\n  top_k: 3\n",
    }
    (tmp_path / "exp").mkdir()
    for name, text in texts.items():
        (tmp_path / "exp" / f"{name}.yaml").write_text("# @package _global_\n" + text)
    (tmp_path / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "mine.yaml").write_text("_target_: my.Launcher\n")
    (tmp_path / "exp" / "launched.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: mine\n" + texts["plain"]
    )
    code, printed, said = planned(["plan", "-m", "--config-dir", f"{tmp_path}", f"+exp={swept}", "out=never"])
    assert (code, printed) == (2, ""), said
    assert "Hydra's own settings would do nothing here" in said and processes.started == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["-m", "hydra/launcher=a,b"], "Hydra's settings cannot be swept over"),
        (["-m", "hydra.run.dir=a,b"], "Hydra's settings cannot be swept over"),
        (["-m", "prompt=-", "sampling.seed=1,2"], "stdin can be read once"),
        (["-m", "prompts=p", "output=o", "sampling.seed=1,2"], "all runs would write to one file"),
        (["plan", "-m", "explain=model", "sampling.seed=1,2"], "it is about one plan"),
        (["plan", "-m", "format=mermaid", "sampling.seed=1,2"], "format=json"),
        (["tune", "-m", "sweep=layout,speculation"], "a search makes runs of its own"),
        (["plan", "-m", "parallel=ep8,ep9"], "no option 'ep9'"),
        (["plan", "-m", "parallel=glob(xyz*)"], "no option matches"),
        (["plan", "-m", "scheduler.max_num_seqs=4,none"], "scheduler.max_num_seqs=none"),
        (["plan", "-m", "sampling.seed=1,2", "out=/dev/null/x"], "no folder can be made there"),
    ],
)
def test_refused_before_the_first_run(processes: type[InThisProcess], command: list[str], words: str) -> None:
    code, printed, said = planned(command)
    assert (code, printed) == (2, "") and words in said, said
    assert processes.started == []
