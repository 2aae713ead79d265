"""A command line in this process: its exit code and what it said."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from deepinfer.cli.main import main


class Outcome(Struct, frozen=True):
    code: int
    out: str
    err: str


@pytest.fixture
def deepinfer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: str) -> Outcome:
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def own_options(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """Write option files ({"cluster/a": text}) into a folder for --config-dir; returns the folder."""

    def write(files: dict[str, str]) -> str:
        for name, text in files.items():
            path = tmp_path / "own" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return str(tmp_path / "own")

    return write
