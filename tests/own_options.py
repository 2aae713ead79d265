"""Options of a user's own, and what is said to someone whose overrides are refused; for tests of the configuration."""

from pathlib import Path

import pytest

from deepinfer.config.compose import load
from deepinfer.config.errors import Refused


def write_options(folder: Path, files: dict[str, str]) -> str:
    """Write option files ({"cluster/a": text}) into a folder for --config-dir; returns the folder."""
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return str(folder)


def refused(*overrides: str, config_dir: str | None = None) -> str:
    """What is said to someone whose overrides are refused."""
    with pytest.raises(Refused) as caught:
        load(*overrides, config_dir=config_dir)
    return str(caught.value)
