"""The folder of a sweep: one command at a time, a name of its own, and what cannot be written is told by name."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.cli import out_folder, points_file
from deepinfer.cli.main import main
from deepinfer.cli.out_folder import LOCK, locked_folder, open_folder
from deepinfer.cli.points_file import FILE, Point, append_point, read_points
from deepinfer.config.errors import Refused


def point(number: int) -> Point:
    return Point(number=number, identity=str(number), swept={}, overrides=(), exit_code=0, wall_s=0.0)


HOLD = """import sys
from deepinfer.cli.out_folder import locked_folder
with locked_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    "command", [["plan", "-m", "hardware=h200", "parallel=ep8"], ["tune", "sweep=layout", "hardware=h200"]]
)
def test_a_folder_belongs_to_one_command_at_a_time(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    holder = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"held\n"
        assert main([*command, f"out={tmp_path}"]) == 1
        told = capsys.readouterr()
        assert f"out={tmp_path}" in told.err and f"another command is writing there, process {other.pid}" in told.err
        assert "wait for it, or take another folder" in told.err and told.out == ""
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
        other.kill()  # its lock dies with it
        other.wait(60)
        with locked_folder(str(tmp_path)) as folder:
            assert folder == tmp_path


def test_folders_without_a_name_are_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(out_folder.time, "strftime", lambda _: "now")
    assert [str(open_folder(None)) for _ in range(3)] == ["runs/now", "runs/now_2", "runs/now_3"]


@pytest.mark.parametrize("name", ["points.jsonl", "pareto.png", "jobs", "search.journal"])
@pytest.mark.parametrize(
    "command", [["plan", "-m", "hardware=h200", "parallel=ep8"], ["tune", "sweep=layout", "hardware=h200"]]
)
def test_what_stands_in_the_way_is_refused_before_anything_runs(
    tmp_path: Path, name: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "jobs":
        (tmp_path / name).write_text("a file")
    else:
        (tmp_path / name).mkdir()
    assert main([*command, f"out={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / name} is {'no folder' if name == 'jobs' else 'a folder'}" in told and "type: out=…" in told
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    append_point(tmp_path, point(1))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / FILE).symlink_to("/dev/full")
    with pytest.raises(Refused, match="No space left on device") as refused:
        append_point(tmp_path / "full", point(2))
    assert str(tmp_path / "full" / FILE) in str(refused.value) and refused.value.exit_code == 1
    assert read_points(tmp_path).keys() == {"1"}


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_point(tmp_path, point(1))
    before = (tmp_path / FILE).read_bytes()

    def half(file: points_file.RawIOBase, line: bytes) -> None:
        file.write(line[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(Refused):
        patched.setattr(points_file, "_write_all", half)
        append_point(tmp_path, point(2))
    assert (tmp_path / FILE).read_bytes() == before
    append_point(tmp_path, point(2))
    assert read_points(tmp_path).keys() == {"1", "2"}


def test_runs_end_with_the_command_that_started_them(tmp_path: Path) -> None:
    """Killed outright, it leaves no process behind."""
    (tmp_path / "waits.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(300)\n")
    starter = (
        "import sys, time\nfrom pathlib import Path\nimport deepinfer.cli.sweep_run as runs\n"
        "from deepinfer.cli.sweep_points import Job\nreal = runs.Popen\n"
        "code = 'import runpy; from deepinfer.cli import child; child.watch_starter(); runpy.run_path(\"waits.py\")'\n"
        "def popen(command, **how):\n    run = real([command[0], '-c', code], **how)\n"
        "    Path('pid').write_text(str(run.pid))\n    return run\n"
        "runs.Popen = popen\njob = Job(identity='', swept={}, overrides=(), arguments=())\n"
        "list(runs.run_jobs([job], Path('jobs'), first_number=1, at_once=1, go_on=lambda: True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path) as first:
        printed = tmp_path / "jobs" / "0001.out"
        wait_for(lambda: printed.is_file() and printed.read_text() == "begun\n")
        pid = int((tmp_path / "pid").read_text())
        assert os.getpgid(pid) == pid != os.getpgid(first.pid)  # Ctrl-C at the terminal does not reach it
        first.kill()
    wait_for(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def test_a_run_sees_an_empty_stdin(tmp_path: Path) -> None:
    code = "from deepinfer.cli import child; child.watch_starter(); import sys; print(repr(sys.stdin.read()))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout and run.stdout.read() == b"''\n"


def test_rows_of_other_commands_are_counted_and_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_point(tmp_path, point(7))
    assert main(["plan", "-m", "hardware=h200", "parallel=ep8", f"out={tmp_path}"]) == 0
    told = capsys.readouterr()
    assert "has 1 point of other commands or files too, not shown here" in told.err
    assert "deepinfer: 1 point, results in" in told.err and "1 of 1 run ended well" in told.err
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [row["number"] for row in rows] == [7, 8] and rows[1]["printed"] == "jobs/0008.out"
    assert len(told.out.splitlines()) == 5
