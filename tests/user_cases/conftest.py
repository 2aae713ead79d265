"""A command line in this process: its exit code and what it said."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct
from own_options import write_options

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
    """Writes option files into a folder for --config-dir, see `write_options`."""
    return partial(write_options, tmp_path / "own")
