"""Fixtures of the configuration's tests."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from own_options import write_options

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
    """Writes option files into a folder for --config-dir, see `write_options`."""
    return partial(write_options, tmp_path / "conf")
