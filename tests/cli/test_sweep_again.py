"""The same sweep again: what is taken from before, what is told again, and how runs are wound up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from deepinfer.cli import sweep_run
from deepinfer.cli.inputs import inputs_digest
from deepinfer.cli.main import main
from deepinfer.cli.points_file import read_points
from deepinfer.cli.sweep_points import MOST_CHECKED, Job, axes_of, check_axes, jobs_of
from deepinfer.cli.sweep_refusals import not_swept
from deepinfer.config import argv
from deepinfer.config.argv import CommandLine
from deepinfer.config.compose import load
from deepinfer.config.errors import Refused


class Answers:
    """A run that prints its last argument and ends at once."""

    stdin = None
    started: list[list[str]] = []

    def __init__(self, command: list[str], *, stdout: Any, **_: object) -> None:
        type(self).started.append(command[3:])
        stdout.write(f"answer {len(self.started)}\n".encode())

    def poll(self) -> int:
        return 0

    def wait(self, _: float = 0.0) -> int:
        return 0

    def kill(self) -> None:
        pass


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> type[Answers]:
    Answers.started = []
    monkeypatch.setattr(sweep_run, "Popen", Answers)
    return Answers


def test_answers_are_printed_again(tmp_path: Path, answers: type[Answers], capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "in.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    out = tmp_path / "out"
    command = ["-m", f"prompts={prompts}", "sampling.seed=1,2", f"out={out}"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert first == "answer 1\nanswer 2\n"
    assert [point.printed for point in read_points(out).values()] == ["jobs/0001.out", "jobs/0002.out"]
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == first and len(answers.started) == 2
    assert "2 of them settled by an earlier run" in again.err
    (out / "jobs" / "0001.out").unlink()  # its answer is lost: it runs again
    assert main(command) == 0
    assert capsys.readouterr().out == "answer 2\nanswer 3\n"
    prompts.write_text('{"prompt": "b"}\n{"prompt": "c"}\n')  # other prompts: nothing of before counts
    assert main(command) == 0
    assert len(answers.started) == 5


def test_files_that_a_command_reads_make_its_identity(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    of_model = load(f"model.path={tmp_path}")
    digests = [inputs_digest([load()], {}), inputs_digest([of_model], {})]
    (tmp_path / "config.json").write_text("{} ")
    digests.append(inputs_digest([of_model], {}))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    digests += [
        inputs_digest([of_model], {}),
        inputs_digest([load(), of_model], {"diff": str(tmp_path / "config.json")}),
    ]
    table = load("workload=trace", f"workload.path={tmp_path / 'config.json'}")
    digests.append(inputs_digest([table], {}))
    assert digests[0] == "" and len(set(digests)) == 6
    assert inputs_digest([load()], {"out": str(tmp_path), "format": "json"}) == ""
    missing = inputs_digest([load("model.path=nowhere")], {})
    assert missing == ""


def test_texts_that_look_like_several_are_told() -> None:
    def told(*arguments: str) -> list[str]:
        return list(not_swept(argv.parse(arguments)))

    (path,) = told("-m", "model.path=a,b")
    assert path.startswith("model.path=a,b is one text") and path.endswith("model.path=a and model.path=b")
    assert len(told("-m", "prompt=a,b")) == 1
    assert told("-m", "prompt=Hello, world", "sampling.seed=1,2", "model.path=a") == []


@pytest.mark.parametrize("verb", ["serve", "chat", "run_batch", "rank", "simulate"])
def test_verbs_without_runs_leave_no_folder(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb, "-m", "sampling.seed=1,2"]) in (1, 2)
    assert f"{verb} -m" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_of_long_axes_some_values_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    line = CommandLine(
        verb="plan",
        flags=(),
        words={},
        texts={},
        problems=(),
        overrides=("sampling.seed=range(0,500)", "sampling.n=1,2"),
    )
    seen: list[CommandLine] = []
    axes = axes_of(line)
    check_axes(line, axes, seen.append)
    assert len(seen) == MOST_CHECKED + 2 and {len(each.overrides) for each in seen} == {2}
    told = capsys.readouterr().err
    assert "sampling.seed has 500 values: the first and the last 32 are checked" in told
    assert "66 values are checked before the first run" in told
    assert len(jobs_of(line, axes, {})) == 1000
    many = CommandLine(
        verb="plan", flags=(), words={}, texts={}, problems=(), overrides=("sampling.seed=range(0,1000000000)",)
    )
    with pytest.raises(Refused, match="at most 100,000"):
        jobs_of(many, axes_of(many), {})


class Stubborn:
    """A run that does not listen: it ends only when killed."""

    stdin = None
    made: list["Stubborn"] = []
    interrupt = False

    def __init__(self, command: list[str], *, process_group: int | None, **_: Any) -> None:
        self.signals: list[int] = []
        self.killed = False
        assert process_group == 0, "Ctrl-C at the terminal would reach it too"
        type(self).made.append(self)

    def poll(self) -> int | None:
        if len(self.made) == 2:
            raise KeyboardInterrupt
        return None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, timeout: float | None = None) -> int:
        if self.killed:
            return -9
        assert timeout is not None, "it would be waited for without end"
        if self.interrupt:
            raise KeyboardInterrupt
        raise TimeoutExpired("run", timeout)

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("second_ctrl_c", [False, True])
def test_runs_are_told_once_and_then_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_ctrl_c: bool
) -> None:
    Stubborn.made, Stubborn.interrupt = [], second_ctrl_c
    monkeypatch.setattr(sweep_run, "Popen", Stubborn)
    jobs = [Job(identity=str(number), swept={}, overrides=(), arguments=()) for number in range(2)]
    with pytest.raises(KeyboardInterrupt):
        list(sweep_run.run_jobs(jobs, tmp_path, first_number=1, at_once=2, go_on=lambda: True))
    assert [(run.signals, run.killed) for run in Stubborn.made] == [([signal.SIGTERM], True)] * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_keeps_what_is_done(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "deepinfer", "plan", "-m", "scheduler.max_num_seqs=range(1,9)", "out=kept"]
    points = tmp_path / "kept" / "points.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        ends_s = time.monotonic() + 240
        while not points.is_file() and time.monotonic() < ends_s:
            time.sleep(0.02)
        os.kill(run.pid, number)
        _, said = run.communicate(timeout=240)
    assert run.returncode == 143 and "the same command with out=kept goes on" in said, said
    assert "deepinfer: terminated" in said and "Traceback" not in said
