"""A canary: what is used of Hydra's insides is there and does what it did. Where this fails, Hydra has changed."""

import copy
import re
from importlib.metadata import version
from pathlib import Path

from hydra.core.default_element import GroupDefault

import deepinfer.config
from deepinfer.config.compose import hydra_of_our_own

PACKAGE = Path(deepinfer.config.__file__).parents[1]
MOVED = f"Hydra {version('hydra-core')} reads its files otherwise: deepinfer/config/hydra_files.py must follow"


def test_hydra_still_reads_files_as_we_expect() -> None:
    try:
        from deepinfer.config.config_files import OURS
        from deepinfer.config.hydra_files import reader_of
    except ImportError as error:
        raise AssertionError(MOVED) from error
    with hydra_of_our_own() as loader:
        reader = reader_of(copy.deepcopy(loader.get_search_path()))
        loaded = reader.load_config("config")
        assert loaded is not None and loaded.path == OURS, MOVED
        entries = {entry.group: entry.value for entry in loaded.defaults_list or [] if isinstance(entry, GroupDefault)}
        assert entries["parallel"] == "single", MOVED
        option = reader.load_config("parallel/ep8")
        assert option is not None and option.config["expert"] == 8, MOVED
        assert reader.load_config("parallel/nothing") is None, MOVED


def test_no_other_file_uses_what_is_inside_hydra() -> None:
    inside = re.compile(r"^\s*(from|import)\s+(hydra|omegaconf)(\.\w+)*\._", re.MULTILINE)
    users = [file.name for file in PACKAGE.rglob("*.py") if inside.search(file.read_text("utf-8"))]
    assert users == ["hydra_files.py"]
