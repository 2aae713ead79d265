"""benchmarks/peer_environment.sh explains itself, and stops with a sentence before it makes anything."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peer_environment.sh"


def typed(*words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *words], capture_output=True, text=True, env={"PYTHON": python, "PATH": "/usr/bin:/bin"}
    )


def test_help_is_the_comment_at_its_head() -> None:
    done = typed("--help")
    assert done.returncode == 0 and "bash benchmarks/peer_environment.sh [FOLDER]" in done.stdout
    assert "set -euo" not in done.stdout and not done.stderr


def test_an_unknown_option_is_no_folder() -> None:
    done = typed("--verbose")
    assert done.returncode == 2 and "no option --verbose; the one argument is a folder" in done.stderr


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    done = typed(str(tmp_path / "peers"), python=str(tmp_path / "python"))
    assert done.returncode == 1 and "type: make setup, or set PYTHON" in done.stderr
    assert not (tmp_path / "peers").exists()


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built with CUDA")
def test_a_torch_without_cuda_is_refused(tmp_path: Path) -> None:
    done = typed(str(tmp_path / "peers"))
    assert done.returncode == 1 and "is built without CUDA; reinstall torch from PyPI" in done.stderr
    assert not (tmp_path / "peers").exists()
