"""Hydra composes `conf/` into plain data here, once, and is then done."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

from hydra import compose, initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from msgspec import Struct
from omegaconf import DictConfig, OmegaConf, open_dict

from deepinfer.config import argv
from deepinfer.config.argv import CommandLine
from deepinfer.config.convert import convert
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.faults import COMPOSITION_ERRORS, blame, broken_values, check_choices
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.specs import Spec

_HYDRA = Lock()  # Hydra keeps its state in a global; one composition at a time


class Composed(Struct, frozen=True, kw_only=True):
    """Plain data, one mapping per group; which option each group took; what was left out because it is wrong."""

    data: dict[str, Any]
    choices: dict[str, str]
    problems: tuple[Problem, ...]


def load(*overrides: str, config_dir: str | None = None) -> Spec:
    """The Spec of some overrides, written as on the command line but for verb and flags.

    Raises Refused with everything that is wrong with them.
    """
    line = argv.parse(overrides)
    strangers = [*line.flags, *([line.verb] if line.verb else []), *(f"{key}=…" for key in line.words)]
    problems = [Problem(asked=word, found="not an option; here only key=value will do") for word in strangers]
    return read(line, problems, config_dir=config_dir)[0]


def read(
    line: CommandLine, problems: Sequence[Problem] = (), *, config_dir: str | None = None
) -> tuple[Spec, dict[str, str]]:
    """The Spec of a command line and the option that each group took.

    Raises Refused with `problems`, those of the line itself, and all that composing and converting bring to light.
    """
    composed = compose_data(line.overrides, texts=line.texts, config_dir=config_dir)
    problems = [*problems, *line.problems, *composed.problems]
    try:
        spec = convert(composed.data)
    except Refused as refused:
        problems += _not_consequences(refused.problems, composed.problems)
        raise Refused(problems) from None
    if problems:
        raise Refused(problems)
    return spec, composed.choices


def compose_data(
    overrides: Sequence[str], *, texts: Mapping[str, str] | None = None, config_dir: str | None = None
) -> Composed:
    """Compose `conf/` (and `config_dir`, searched after it) with overrides; `texts` are then set as they stand.

    An override that cannot be taken is left out and reported, so that the rest can still be checked. Raises Refused
    where nothing can be composed at all.
    """
    with hydra_of_our_own() as loader:
        ready, problems = prepare(overrides, Groups(loader, config_dir))
        config = _compose_what_can_be([*_search_path(config_dir, problems), *ready], problems)
    choices = dict(config.hydra.runtime.choices)
    data, broken = _plain(config)
    problems += [*check_choices(choices), *broken]
    if not data:
        raise Refused(problems)
    for key, text in (texts or {}).items():
        _set(data, key, text)
    ours = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    return Composed(data=data, choices=ours, problems=tuple(problems))


def _compose_what_can_be(overrides: list[str], problems: list[Problem]) -> DictConfig:
    try:
        return _compose(overrides)
    except COMPOSITION_ERRORS as error:
        good, faults = blame(overrides, _compose, error)
        problems += faults
        if good is None:
            raise Refused(problems) from error
        return _compose(good)


def _not_consequences(found: Sequence[Problem], earlier: Sequence[Problem]) -> list[Problem]:
    """Problems of values, without those in groups whose option was refused: they were checked against another one."""
    choices = {problem.asked.partition("=")[0].partition("@")[0] for problem in earlier}
    return [problem for problem in found if re.split(r"[.=]", problem.asked, maxsplit=1)[0] not in choices]


@contextmanager
def hydra_of_our_own() -> Iterator[ConfigLoader]:
    """Hydra, initialised for our tree and put back as it was: a caller's own Hydra application stays untouched."""
    with _HYDRA:
        instance = GlobalHydra.instance()
        theirs = instance.hydra
        instance.clear()
        try:
            with initialize_config_module(version_base="1.3", config_module="deepinfer.conf"):
                yield instance.config_loader()
        finally:
            GlobalHydra.instance().hydra = theirs


def _compose(overrides: list[str]) -> DictConfig:
    return compose("config", overrides=overrides, return_hydra_config=True)


def _search_path(config_dir: str | None, problems: list[Problem]) -> list[str]:
    if config_dir is None:
        return []
    folder = Path(config_dir).expanduser().absolute()
    if folder.is_dir():
        return [f"hydra.searchpath=['file://{folder}']"]
    problems.append(Problem(asked=f"--config-dir {config_dir}", found=f"{folder} is not a folder"))
    return []


def _plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """Every group but Hydra's own as plain data with interpolations resolved; problems where one cannot be."""
    with open_dict(config):
        del config["hydra"]
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)), []
    except COMPOSITION_ERRORS as error:
        return {}, broken_values(config) or [Problem(asked="the configuration", found=str(error))]


def _set(data: dict[str, Any], key: str, text: str) -> None:
    *groups, name = key.split(".")
    for group in groups:
        data = data.setdefault(group, {})
    data[name] = text
