"""Hydra composes `conf/` into plain data here, once, and is then done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
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
from deepinfer.config.convert import MANDATORY, convert
from deepinfer.config.errors import Problem, Refused, nearest
from deepinfer.config.faults import COMPOSITION_ERRORS, blame, broken_values, check_choices
from deepinfer.config.hydra_files import remembering_loader
from deepinfer.config.keys import is_key
from deepinfer.config.mandatory import open_values, without_repetitions
from deepinfer.config.misnamed import options_of
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.own_files import Survey, shadowed, survey
from deepinfer.config.paths import check_working_directory, user_path
from deepinfer.config.placed import placed
from deepinfer.config.quoting import quoted
from deepinfer.config.same_chip import with_top_chip
from deepinfer.config.specs import Spec
from deepinfer.config.user_files import UNREADABLE, settings_of_hydra, why_unreadable
from deepinfer.config.written import texts_as_written

MISPLACED = (TypeError, AttributeError, KeyError, IndexError)  # what OmegaConf ends in below a list or a bare value
_HYDRA = Lock()  # Hydra keeps its state in a global; one composition at a time


class Composed(Struct, frozen=True, kw_only=True):
    """Plain data, one mapping per group; which option each group took; what was left out because it is wrong; and
    what nobody gave although a file demands it."""

    data: dict[str, Any]
    choices: dict[str, str]
    problems: tuple[Problem, ...]
    missing: tuple[Problem, ...] = ()


def load(*overrides: str, config_dir: str | None = None) -> Spec:
    """The Spec of some overrides, written as on the command line but for verb and flags.

    Raises Refused with everything that is wrong with them.
    """
    return load_with_choices(*overrides, config_dir=config_dir)[0]


def load_with_choices(*overrides: str, config_dir: str | None = None) -> tuple[Spec, dict[str, str]]:
    """As `load`, and the option that each group took."""
    strange = [text for text in overrides if not isinstance(text, str)]
    if strange:
        why = "each override is a string of its own"
        raise Refused(
            Problem(asked=repr(text), found=f"{type(text).__name__} is no text", why=why, fix='"sampling.seed=7"')
            for text in strange
        )
    if config_dir is not None and not isinstance(config_dir, str):
        raise Refused([Problem(asked=f"config_dir={config_dir!r}", found="wanted the name of a folder, as text")])
    bare = [text for text in overrides if "=" not in text and not text.startswith(("~", "-"))]
    line = argv.parse([text for text in overrides if text not in bare])
    strangers = [*line.flags, *([line.verb] if line.verb else []), *(f"{key}=…" for key in line.words)]
    problems = [Problem(asked=word, found="not an option; here only key=value will do") for word in strangers]
    why = "overrides are written key=value"
    problems += [Problem(asked=text or "''", found="no '=' in it", why=why, fix=_option_named(text)) for text in bare]
    return read(line, problems, config_dir=config_dir)


def read(
    line: CommandLine, problems: Sequence[Problem] = (), *, config_dir: str | None = None
) -> tuple[Spec, dict[str, str]]:
    """The Spec of a command line and the option that each group took.

    Raises Refused with `problems`, those of the line itself, and all that composing and converting bring to light.
    """
    composed = compose_data(line.overrides, texts=line.texts, config_dir=config_dir)
    problems = [*problems, *line.problems, *composed.problems]
    if config_dir is not None:
        for key, text in texts_as_written(composed.data, line, config_dir).items():
            _set(composed.data, key, text)
    try:
        spec = convert(composed.data)
    except Refused as refused:
        found = without_repetitions(composed.missing, refused.problems)
        found = placed(with_top_chip(found, composed.choices), line.overrides, line.texts, config_dir)
        raise Refused([*problems, *_not_consequences(found, composed.problems)]) from None
    if problems or composed.missing:
        raise Refused([*problems, *composed.missing])
    return spec, composed.choices


def _option_named(word: str) -> str:
    """The override that a bare word probably stands for: an option of some group, or a folder with a model."""
    if "/" in word:
        return f"model.path={word}"
    groups = [group for group in reversed(Spec.__struct_fields__) if group != "task"]  # of several the first wins
    names = {name: group for group in groups for name in options_of(group)}
    close = nearest(word, names)
    return f"{names[close]}={close}" if close else ""


def compose_data(
    overrides: Sequence[str], *, texts: Mapping[str, str] | None = None, config_dir: str | None = None
) -> Composed:
    """Compose `conf/` (and `config_dir`, searched after it) with overrides; `texts` are then set as they stand.

    An override that cannot be taken is left out and reported, so that the rest can still be checked. Raises Refused
    where nothing can be composed at all.
    """
    with hydra_of_our_own() as loader:
        problems: list[Problem] = []
        folder = _folder(config_dir, problems)
        ready, faults = prepare(overrides, Groups(loader, str(folder) if folder else None))
        problems += faults
        own = survey(folder, ready) if folder else Survey()
        usable = [text for text in ready if text not in own.unusable]
        config, taken = _compose_what_can_be([*search_path(folder), *usable, *own.stand_ins], problems, folder)
        problems = [*(problem for problem in problems if problem.asked not in own.stand_ins), *own.problems]
        missing = open_values(loader, folder, taken, texts or ()) if folder else []
        problems += settings_of_hydra(loader, folder, taken) if folder else []
    choices = dict(config.hydra.runtime.choices)
    data, broken = _plain(config)
    problems += [*check_choices(choices), *broken, *(shadowed(folder, choices) if folder else ())]
    if not data:
        raise Refused([*problems, *missing])
    for key, text in (texts or {}).items():
        _set(data, key, text)
    ours = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    return Composed(data=data, choices=ours, problems=tuple(problems), missing=tuple(missing))


def _compose_what_can_be(
    overrides: list[str], problems: list[Problem], folder: Path | None
) -> tuple[DictConfig, list[str]]:
    """The composed configuration and the overrides that it is made of."""
    composed = cache(_compose)  # finding the guilty one comes to the same overrides again

    def attempt(some: list[str]) -> DictConfig:
        try:
            return composed(tuple(some))
        except UNREADABLE as error:
            raise ValueError(why_unreadable(error, folder)) from error
        except MISPLACED as error:
            raise ValueError(f"no such place: {str(error).strip().splitlines()[0]}") from error

    try:
        return attempt(overrides), overrides
    except COMPOSITION_ERRORS as error:
        good, faults = blame(overrides, attempt, error, folder)
        problems += faults
        if good is None:
            raise Refused(problems) from error
        return attempt(good), good


def _not_consequences(found: Sequence[Problem], earlier: Sequence[Problem]) -> list[Problem]:
    """Problems of values, without those in groups whose option was refused: they were checked against another one.
    A key that no option of any group has is wrong all the same; a value that leads nowhere was reported."""
    refused = {problem.asked.partition("=")[0] for problem in earlier}
    choices = {key.partition("@")[0] for key in refused}
    keys = [problem.asked.partition("=")[0] for problem in found]
    return [
        problem
        for problem, key in zip(found, keys, strict=True)
        if problem.asked not in refused and (key.partition(".")[0] not in choices or not is_key(key))
    ]


@contextmanager
def hydra_of_our_own() -> Iterator[ConfigLoader]:
    """Hydra, initialised for our tree and put back as it was: a caller's own Hydra application stays untouched."""
    check_working_directory()
    with _HYDRA:
        instance = GlobalHydra.instance()
        theirs = instance.hydra
        instance.clear()
        try:
            with initialize_config_module(version_base="1.3", config_module="deepinfer.conf"):
                yield remembering_loader()
        finally:
            GlobalHydra.instance().hydra = theirs


def _compose(overrides: tuple[str, ...]) -> DictConfig:
    return compose("config", overrides=list(overrides), return_hydra_config=True)


def _folder(config_dir: str | None, problems: list[Problem]) -> Path | None:
    if config_dir is None:
        return None
    try:
        folder = user_path(config_dir, "--config-dir").absolute()
        if config_dir and folder.is_dir():
            return folder
        found = f"{folder} is not a folder" if config_dir else "no folder is named"
    except Refused as refused:
        problems += refused.problems
        return None
    except ValueError as error:  # a NUL in it
        found = str(error)
    asked = f"--config-dir {config_dir or repr('')}"
    problems.append(Problem(asked=asked, found=found))
    return None


def search_path(folder: Path | None) -> list[str]:
    """The override by which Hydra also searches `folder`, whatever characters its name is made of."""
    if folder is None:
        return []
    key, text = "hydra.searchpath", f"file://{folder}"
    return [f"{key}=[{quoted(key, text).removeprefix(f'{key}=')}]"]


def _plain(config: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """Every group but Hydra's own as plain data with interpolations resolved; problems where one cannot be."""
    with open_dict(config):
        del config["hydra"]
    broken: dict[str, Problem] = {}
    try:
        try:
            data = OmegaConf.to_container(config, resolve=True)
        except COMPOSITION_ERRORS:
            broken = broken_values(config)
            for path in broken:  # left open, so that everything else can still be looked at
                OmegaConf.update(config, path, MANDATORY)
            data = OmegaConf.to_container(config, resolve=True)
    except RecursionError:
        why = "an interpolation leads back to itself, or a file is nested too deeply"
        return {}, [Problem(asked="the configuration", found="it has no end", why=why)]
    except COMPOSITION_ERRORS as error:
        return {}, list(broken.values()) or [Problem(asked="the configuration", found=str(error))]
    return cast(dict[str, Any], data), list(broken.values())


def _set(data: dict[str, Any], key: str, text: str) -> None:
    *groups, name = key.split(".")
    for group in groups:
        if not isinstance(data.get(group), dict):  # a word where a mapping may stand as well
            data[group] = {}
        data = data[group]
    data[name] = text
