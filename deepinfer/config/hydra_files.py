"""The one place that uses Hydra's insides: reading a file of the search path with its defaults list taken apart.

Hydra's public loader composes whole configurations, and tells of its sources; what a single file chose it keeps to itself
(hydra._internal.config_repository). A test says so plainly where a new Hydra has moved it.
"""

from typing import Protocol

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult


class FileReader(Protocol):
    """A file by its path inside the search path, without .yaml; None where no place has it."""

    def load_config(self, config_path: str) -> ConfigResult | None: ...


def reader_of(search_path: ConfigSearchPath) -> FileReader:
    """Reads files as Hydra does: the first place that has one, its header, its defaults list."""
    return ConfigRepository(search_path)
