"""What was asked and would have done nothing, or ended in a traceback: refused in words."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.main import main
from deepinfer.config.compose import load
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.kinds import options_of_kind
from deepinfer.config.paths import user_path

Capture = pytest.CaptureFixture[str]


def refuse(*overrides: Any, **named: Any) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refused:
        load(*overrides, **named)
    return refused.value.problems


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--config-dir", "~nobody_here"),
        ("plan", "--config-dir", "~nobody_here", "--cfg", "job"),
        ("plan", "model.path=~nobody_here/x"),
        ("plan", "cost=measured", "cost.path=~nobody_here/x"),
        ("plan", "model=v41_tiny", "workload=trace", "workload.path=~nobody_here/x"),
        ("plan", "model=v41_tiny", "diff=~nobody_here/x"),
        ("plan", "-m", "model=v41_tiny", "cache.num_blocks=4,8", "out=~nobody_here/x"),
        ("plan", "-m", "model=v41_tiny", "cache.num_blocks=4,8", "--config-dir", "~nobody_here"),
        ("launch", "model=v41_tiny", "out=~nobody_here/x"),
        ("generate", "prompts=~nobody_here/x", "hardware=nope"),
    ],
)
def test_homes_that_are_not_there(capsys: Capture, arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 2
    assert "there is no home folder for ~nobody_here" in capsys.readouterr().err


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x", "model.path") == tmp_path / "x"


def test_a_working_directory_that_was_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    try:
        (problem,) = refuse("model=v41_tiny")
    finally:
        os.chdir(tmp_path)
    assert problem.asked == "the working directory" and "no longer exists" in problem.found


@pytest.mark.parametrize("override", [None, 3, b"model=v41_tiny", ["model=v41_tiny"]])
def test_overrides_that_are_no_text(override: Any) -> None:
    (problem,) = refuse(override)
    assert problem.asked == repr(override) and "no text" in problem.found


@pytest.mark.parametrize("folder", ["", 3, "a\0b"])
def test_folders_that_are_none(folder: Any) -> None:
    (problem,) = refuse("model=v41_tiny", config_dir=folder)
    assert "config" in problem.asked


@pytest.mark.parametrize(
    ("typo", "fix"),
    [
        ("hardware.peak_flops_by_dtype.f8=1e12", "hardware.peak_flops_by_dtype.f8_e4m3=1000000000000.0"),
        ("cost.architectures.sm90.flops.bf17=0.5", "cost.architectures.sm90.flops.bf16=0.5"),
    ],
)
def test_names_that_nothing_reads(typo: str, fix: str) -> None:
    (problem,) = refuse("hardware=h200", typo)
    assert problem.found.startswith("nothing reads") and problem.fix == fix
    load("hardware=h200", fix)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cost.stand_in=sm77",), "cost.architectures has"),
        (("workload=trace", "workload.path=/no/such/trace"), "there is no such file"),
        (("--config-dir", "a", "--config-dir", "b"), "--config-dir is given 2 times"),
        (("--cfg", "job", "diff=x"), "only show the configuration"),
        (("--info", "explain=parallel"), "only show the configuration"),
    ],
)
def test_what_nothing_would_read(capsys: Capture, arguments: tuple[str, ...], words: str) -> None:
    assert main(["plan", "hardware=h200", "parallel=ep8", "model=v41_flash", *arguments]) in (2, 3)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["cluster.hosts=[a]", "speculation.depth=3", "workload.path=x", "cost.path=x"])
def test_a_kind_is_told_by_its_options(asked: str) -> None:
    (problem,) = refuse(asked)
    load(*shlex.split(problem.fix))


def test_options_of_kinds() -> None:
    assert "h200_node" in options_of_kind("cluster", "site") and "chat" in options_of_kind("workload", "steady")
    assert options_of_kind("hardware", "ascend")[0] == "ascend950" and options_of_kind("cluster", "nope") == ()


def test_a_refusal_on_a_full_disk(capsys: Capture) -> None:
    """Where JSON cannot be written the people's text says it; nothing ends in a traceback."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    import subprocess
    import sys

    command = [sys.executable, "-m", "deepinfer", "plan", "hardware=x", "format=json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "stdout cannot be written" in done.stderr and "Traceback" not in done.stderr
