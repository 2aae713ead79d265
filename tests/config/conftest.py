"""Fixtures of the configuration's tests."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config.compose import compose_data


@pytest.fixture(scope="session")
def _default_data() -> dict[str, Any]:
    return compose_data([]).data


@pytest.fixture
def data(_default_data: dict[str, Any]) -> dict[str, Any]:
    """The default configuration as plain data, to be spoiled at will."""
    return copy.deepcopy(_default_data)


@pytest.fixture
def config_dir(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """Write option files ({"cluster/a": text}) into a folder for --config-dir; returns the folder."""

    def write(files: dict[str, str]) -> str:
        for name, text in files.items():
            path = tmp_path / "conf" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return str(tmp_path / "conf")

    return write
