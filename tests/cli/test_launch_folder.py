"""The folder of a launch: nothing of anybody else's is touched, and a launch that was killed is no obstacle to the next."""

import re
from pathlib import Path

import pytest

from deepinfer.cli import launch_folder
from deepinfer.cli.launch_folder import write_folder
from deepinfer.cli.main import main
from deepinfer.config.errors import Refused

FIRST = {"plan.json": "{}\n", "run.sh": "#!/bin/sh\n", "all-0/node-0.sh": "#!/bin/sh\nold\n", "all-1/node-0.sh": "x\n"}
SECOND = {"plan.json": "[]\n", "README.md": "# new\n", "all-0/node-0.sh": "#!/bin/sh\nnew\n", "b/c/d.yaml": "y\n"}


class Killed(BaseException):
    """What nothing handles, as nothing handles kill -9."""


def tree(folder: Path) -> dict[str, str | None]:
    """Every file with its text, every folder and link without one."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        if path.is_file() and not path.is_symlink()
        else None
        for path in folder.rglob("*")
    }


def killed_at(step: int, folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write, and die in the middle of the `step`-th file; whether there was such a step."""
    left = iter(range(step + 1))

    def put(path: Path, text: str) -> None:
        if next(left) < step:
            real(path, text)
            return
        path.with_name(path.name + ".part").write_text(text[: len(text) // 2])
        raise Killed

    real = launch_folder._put
    with monkeypatch.context() as patch:
        patch.setattr(launch_folder, "_put", put)
        try:
            write_folder(folder, files)
        except Killed:
            return True
    return False


def test_a_launch_that_was_killed_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = tmp_path / "clean"
    write_folder(clean, SECOND)
    steps = 0
    for step in range(20):
        for before in (None, FIRST):
            folder = tmp_path / f"{step}-{before is None}"
            if before:
                write_folder(folder, before)
            if not killed_at(step, folder, SECOND, monkeypatch):
                continue
            steps += 1
            killed_at(2, folder, {"third": "3\n", **FIRST}, monkeypatch)  # and once more, by another launch
            (folder / "mine").mkdir()
            write_folder(folder, SECOND)
            (folder / "mine").rmdir()  # it is still there
            assert tree(folder) == tree(clean)
    assert steps == 2 * (len(SECOND) + 2)  # each file, and the list before and behind them


def test_what_a_killed_launch_left_and_somebody_edited_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_at(3, tmp_path, SECOND, monkeypatch)
    (tmp_path / "plan.json").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(Refused, match=r"left there so: plan\.json"):
        write_folder(tmp_path, SECOND)
    assert tree(tmp_path) == before


def test_the_list_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a launch is complete, its list does not say so."""
    assert killed_at(len(SECOND) + 1, tmp_path, SECOND, monkeypatch)
    assert "files.sha256" not in tree(tmp_path) and "files.sha256.next" in tree(tmp_path)


def test_folders_of_the_user_stay(tmp_path: Path) -> None:
    for name in ("empty", "all-0/empty", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    write_folder(tmp_path, FIRST)
    write_folder(tmp_path, {"plan.json": "[]\n"})
    assert tree(tmp_path).keys() == {
        "empty",
        "all-0",
        "all-0/empty",
        "deep",
        "deep/er",
        "plan.json",
        "files.sha256",
    }


@pytest.mark.parametrize(
    "what", ["folder for a file", "folder for the list", "file for a folder", "link for a folder", "link for the list"]
)
def test_what_is_in_the_way_is_refused_before_anything_is_touched(what: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, FIRST)
    in_the_way = {"folder for the list": "files.sha256", "link for the list": "files.sha256"}.get(what, "README.md")
    if what in ("file for a folder", "link for a folder"):
        in_the_way = "b"
    if what.startswith("folder"):
        (out / in_the_way).unlink(missing_ok=True)
        (out / in_the_way).mkdir()
    elif what == "file for a folder":
        (out / in_the_way).write_text("mine")
    else:
        target = tmp_path / "target"
        target.write_text((out / "files.sha256").read_text()) if "list" in what else target.mkdir()
        (out / in_the_way).unlink(missing_ok=True)
        (out / in_the_way).symlink_to(target)
    before = tree(out)
    with pytest.raises(Refused, match=rf"left there so: .*{in_the_way}"):
        write_folder(out, SECOND)
    assert tree(out) == before


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("file/inside", "is no folder"),
        ("dangling", "a link that leads to no folder"),
        ("loop", "a link that leads to no folder"),
        ("loop/inside", "is no folder"),
        ("x" * 300, "File name too long"),
        ("/proc/deepinfer", "cannot be written|nothing can be written"),
        ("/dev/null", "it is a file"),
    ],
)
def test_where_no_folder_can_be(place: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    out = tmp_path / place
    assert main(["launch", "model=v41_tiny", "task.run=generate", f"out={out}"]) == 2
    said = capsys.readouterr()
    assert re.search(told, said.err) and f"out={out}" in said.err and "type: out=" in said.err
    assert "Traceback" not in said.err and said.out == ""


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(launch_folder, "_put", full)
    with pytest.raises(Refused, match=r"No space left on device at .*files\.sha256\.next"):
        write_folder(tmp_path, FIRST)
