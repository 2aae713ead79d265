"""Values that a file leaves open (`???`): all at once, each with the file that declares it.

Hydra keeps what an earlier file says when a later one says `???`; the author of the later one meant "must be given". So
the files are gone through in Hydra's own order, and what is still open at the end is missing.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf

from deepinfer.config.convert import MANDATORY
from deepinfer.config.errors import Problem
from deepinfer.config.specs import Spec


def open_values(loader: ConfigLoader, folder: Path, overrides: Sequence[str], given: Iterable[str]) -> list[Problem]:
    """A problem for every value that a file declares as mandatory and that neither a later file, nor one of the
    `overrides` (which compose, with `folder` on the search path), nor one of the keys `given` otherwise fills in."""
    still_open: dict[str, str] = {}
    for default in loader.compute_defaults_list("config", list(overrides), RunMode.RUN).defaults:
        package = default.package or ""
        if default.config_path and package.partition(".")[0] != "hydra":
            data, file = _contents(loader, folder, default.config_path)
            if isinstance(data, dict):
                data.pop("defaults", None)
            _settle(still_open, package, data, file)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.key_or_group not in Spec.__struct_fields__:
            _settle(still_open, override.key_or_group, override.value(), "the command line")
    for key in given:
        _settle(still_open, key, "given", "the command line")
    return [_missing(path, file) for path, file in still_open.items()]


def _missing(path: str, file: str) -> Problem:
    key, bracket, _ = path.partition("[")  # items of a list cannot be given one by one
    why, fix = f"{file} leaves it open", f"{key}=[…]" if bracket else f"{key}=…"
    return Problem(asked=path, found="nothing given: it is mandatory", why=why, fix=fix)


def without_repetitions(missing: Sequence[Problem], converted: Sequence[Problem]) -> list[Problem]:
    """Both kinds of problems. Of two about one value the one with its file stays, but an unknown key is more than an
    open one."""
    paths = {problem.asked for problem in missing}
    same = paths | {f"{path}={MANDATORY}" for path in paths if path.endswith(".kind")}
    others = [problem for problem in converted if problem.asked not in same]
    unknown = {problem.asked for problem in others}
    return [*(problem for problem in missing if f"{problem.asked}={MANDATORY}" not in unknown), *others]


def _contents(loader: ConfigLoader, folder: Path, config_path: str) -> tuple[Any, str]:
    """What the file that Hydra takes for `config_path` says, and its name: one of ours, else one of `folder`."""
    name = f"{config_path.removesuffix('.yaml')}.yaml"
    for source in loader.get_sources():
        if source.path and source.is_config(config_path):
            return OmegaConf.to_container(source.load_config(config_path).config, resolve=False), name
    file = folder / name
    return (OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file.is_file() else {}), str(file)


def _settle(still_open: dict[str, str], path: str, value: Any, file: str) -> None:
    """Note what `value` at `path` fills in and what it leaves open."""
    if isinstance(value, dict):
        for key, item in value.items():
            _settle(still_open, f"{path}.{key}" if path else str(key), item, file)
        return
    for known in [known for known in still_open if _within(known, path) or _within(path, known)]:
        del still_open[known]
    if isinstance(value, str) and value == MANDATORY:
        still_open[path] = file
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _settle(still_open, f"{path}[{index}]", item, file)


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))
