"""The one place that uses Hydra's insides: reading the files of the search path, with their defaults lists taken apart.

Hydra's public loader composes whole configurations, and tells of its sources; what a single file chose it keeps to itself
(hydra._internal.config_repository). A test says so plainly where a new Hydra has moved it.

Half of the time of a composition goes into reading files. Those of packages, ours and Hydra's own, are read by libyaml
here, and once in a process for as long as they stay as they are. The user's own files are read as Hydra reads them.
"""

import copy
import os
import time
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

SETTLED_S = 2.0  # a file that changed later than this may change again within one tick of its file system's clock
_Stamp = tuple[int, int, int, int]  # inode, bytes, and when content and inode last changed (ns)
_read: dict[Path, tuple[_Stamp, ConfigResult]] = {}


class FileReader(Protocol):
    """A file by its path inside the search path, without .yaml; None where no place has it."""

    def load_config(self, config_path: str) -> ConfigResult | None: ...


def reader_of(search_path: ConfigSearchPath) -> FileReader:
    """Reads files as Hydra does: the first place that has one, its header, its defaults list."""
    return _Repository(search_path)


def remembering_loader() -> ConfigLoader:
    """Hydra's loader, made to remember the files of packages beyond one composition. Hydra has been initialised."""
    hydra = GlobalHydra.instance().hydra
    assert hydra is not None and isinstance(hydra.config_loader, ConfigLoaderImpl)
    hydra.config_loader = _Loader(hydra.config_loader.config_search_path)
    return hydra.config_loader


def _fast_loader() -> Any:
    """OmegaConf's own loader (its numbers, its refusal of a key given twice) on libyaml's parser, where there is one."""
    rules: Any = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return rules

    class FastLoader(yaml.cyaml.CParser, rules):
        def __init__(self, stream: str) -> None:
            yaml.cyaml.CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return FastLoader


LOADER = _fast_loader()


class _PackageSource(ImportlibResourcesConfigSource):
    """Hydra's own, on a faster parser."""

    def _read_config(self, res: Any) -> ConfigResult:
        text = res.read_text(encoding="utf-8")
        try:
            found = yaml.load(text, Loader=LOADER)
        except yaml.YAMLError:
            found = None
        if not isinstance(found, dict):  # what is wrong with it Hydra says in its usual words
            return super()._read_config(res)
        header = self._get_header_dict(text)
        path = f"{self.scheme()}://{self.path}"
        return ConfigResult(config=OmegaConf.create(found), path=path, provider=self.provider, header=header)


class _Loader(ConfigLoaderImpl):
    """Hydra's own, on files that are remembered."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Repository(config_search_path)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """A file that goes into a group is copied there; of one that goes to the top Hydra takes and changes the parts."""
        return super()._load_single_config(default, repo if default.package else _Copies(repo))


class _Copies(CachingConfigRepository):
    """Hands out files that may be changed, and reads them for nobody else."""

    def __init__(self, repo: IConfigRepository) -> None:
        self.delegate = repo

    def load_config(self, config_path: str) -> ConfigResult | None:
        return copy.deepcopy(self.delegate.load_config(config_path))


class _Repository(ConfigRepository):
    """Hydra's own, remembered. What it hands out is for reading only."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self.sources = [
            _PackageSource(source.provider, source.full_path()) if source.scheme() == "pkg" else source
            for source in self.sources
        ]

    def load_config(self, config_path: str) -> ConfigResult | None:
        file = self._file_of_package(config_path)
        stamp = _stamp(file) if file else None
        if file is None or stamp is None:
            return super().load_config(config_path)
        known = _read.get(file)
        if known is None or known[0] != stamp:
            loaded = super().load_config(config_path)
            assert loaded is not None, "the file is there"
            known = _read[file] = (stamp, loaded)
        return copy.copy(known[1])

    def _file_of_package(self, config_path: str) -> Path | None:
        """The file on disk that holds an option of a package's; None for all others."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "pkg":
            return None
        file = resources.files(source.path).joinpath(source._normalize_file_name(config_path))
        return file if isinstance(file, Path) else None  # of a zipped package it is something else


def _stamp(file: Path) -> _Stamp | None:
    """What changes when a file does; None while that is not certain."""
    found = os.stat(file)
    if time.time() - max(found.st_mtime, found.st_ctime) < SETTLED_S:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
