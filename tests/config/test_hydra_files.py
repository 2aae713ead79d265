"""What is used of Hydra's insides is there and does what it did (where this fails, Hydra has changed); and files of
packages, which are read by another parser and remembered, say what they say to Hydra."""

import copy
import re
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.default_element import GroupDefault
from omegaconf import OmegaConf

import deepinfer.config
from deepinfer.config import hydra_files
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


TREES = [Path(str(resources.files(package))) for package in ("deepinfer.conf", "hydra.conf")]
FILES = [file for tree in TREES for file in tree.rglob("*.yaml")]
DOCUMENTS = [
    "[1e5, 1.5e3, .5, 1_000, 1_0.5, 0x1f, 010, 1:30, .inf, -.inf, 2026-01-01, 1.2.3]",
    "[on, off, yes, no, true, null, ~, '1', \"1e5\", !!str 3, 64k, 80GiB, 1e]",
    "{a: &x {b: 1}, c: {<<: *x, d: 2}}",
    "a: |\n  two\n  lines\nb: >-\n  one\n  line\n",
    "# @package _global_\n",
    "",
    "a",
]


@pytest.mark.parametrize("text", [*DOCUMENTS, *(file.read_text("utf-8") for file in FILES)])
def test_the_parser_reads_what_hydra_reads(text: str) -> None:
    as_hydra = yaml.load(text, Loader=hydra_files.get_yaml_loader())
    assert repr(yaml.load(text, Loader=hydra_files.LOADER)) == repr(as_hydra)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(yaml.YAMLError, match="duplicate key a"):
        yaml.load("a: 1\na: 2\n", Loader=hydra_files.LOADER)


@pytest.fixture
def own_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package `own_tree`, which Python can import."""
    folder = tmp_path / "own_tree"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("own_tree", None)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each file of a package as it is read from the disk."""
    found: list[str] = []
    read_config = hydra_files._PackageSource._read_config

    def noted(source: Any, res: Path) -> Any:
        found.append(res.name)
        return read_config(source, res)

    monkeypatch.setattr(hydra_files._PackageSource, "_read_config", noted)
    return found


def reader_of_own_package() -> hydra_files.FileReader:
    path = ConfigSearchPathImpl()
    path.append("main", "pkg://own_tree")
    return hydra_files.reader_of(path)


def content(reader: hydra_files.FileReader, name: str) -> Any:
    loaded = reader.load_config(name)
    return loaded and OmegaConf.to_container(loaded.config)


def test_a_file_is_read_once_and_again_when_it_has_changed(
    own_package: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hydra_files, "SETTLED_S", float("-inf"))
    file = own_package / "option.yaml"
    for text, times in (("a: 1", 1), ("a: 12", 2)):
        file.write_text(text, "utf-8")
        assert [content(reader_of_own_package(), "option") for _ in range(3)] == [yaml.safe_load(text)] * 3
        assert reads == ["option.yaml"] * times
    file.unlink()
    assert content(reader_of_own_package(), "option") is None


def test_a_file_that_has_only_just_changed_is_read_each_time(own_package: Path, reads: list[str]) -> None:
    """Two changes within one tick of a file system's clock look like one."""
    for text in ("a: 1", "a: 2", "a: 3"):
        (own_package / "option.yaml").write_text(text, "utf-8")
        assert content(reader_of_own_package(), "option") == yaml.safe_load(text)
    assert len(reads) == 3


def test_a_broken_file_of_a_package_is_refused_as_hydra_does_it(own_package: Path) -> None:
    (own_package / "option.yaml").write_text("a: 1\na: 2\n", "utf-8")
    with pytest.raises(yaml.YAMLError, match="found duplicate key a") as refused:
        reader_of_own_package().load_config("option")
    assert str(own_package / "option.yaml") in str(refused.value)


def test_what_one_composition_changes_the_next_does_not_see() -> None:
    """Hydra takes the parts of a file that goes to the top over, and sets overrides in them."""
    with hydra_of_our_own():
        for expert in (3, 8, 8):
            forced = [f"++expert={expert}"] if expert == 3 else []
            config = hydra.compose("config", ["+parallel@_global_=ep8", *forced], return_hydra_config=False)
            assert config.expert == expert
