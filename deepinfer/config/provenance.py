"""Who set every value and chose every option: the file and line, or the override, oldest first.

Hydra composes and forgets. This walks its defaults list once more, in its order, reading each file with line numbers.
It runs only where somebody asks (`explain=`, `diff=`, an error message): a composition costs nothing for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from msgspec import Struct

from deepinfer.config.compose import hydra_of_our_own, search_path
from deepinfer.config.config_files import ConfigFiles, Lines, chosen_in
from deepinfer.config.errors import Refused
from deepinfer.config.faults import COMPOSITION_ERRORS
from deepinfer.config.history import History, Origin
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.own_files import Survey, survey
from deepinfer.config.paths import user_path
from deepinfer.config.user_files import UNREADABLE

UNTRACEABLE = (*COMPOSITION_ERRORS, *UNREADABLE, OSError)


class Provenance(Struct, frozen=True, kw_only=True):
    """Dotted key → who set it, and group (or group@package) → who chose it. Oldest first; the last one won."""

    values: dict[str, tuple[Origin, ...]] = {}
    choices: dict[str, tuple[Origin, ...]] = {}

    def of(self, key: str) -> tuple[Origin, ...]:
        """Who set a key or chose a group; empty where nobody did. An item of a list is set with its list."""
        key = key.partition("[")[0]
        return self.choices.get(key) or self.values.get(key, ())

    def last(self, key: str) -> Origin | None:
        """Who had the last word on a key or a group; None where nobody had."""
        return origins[-1] if (origins := self.of(key)) else None

    def below(self, path: str) -> dict[str, tuple[Origin, ...]]:
        """The keys inside a mapping."""
        return {key: origins for key, origins in self.values.items() if key.startswith(f"{path}.")}


def trace(
    overrides: Sequence[str], texts: Mapping[str, str] | None = None, config_dir: str | None = None
) -> Provenance:
    """Where every value and choice of a composition comes from; the arguments are those of `compose_data`.

    Overrides that compose_data would refuse are left out. Never raises: what cannot be composed at all has no
    provenance. Takes Hydra's lock, so it cannot be called while composing.
    """
    folder = _folder(config_dir)
    with hydra_of_our_own() as loader:
        ready, _ = prepare(overrides, Groups(loader, str(folder) if folder else None))
        own = survey(folder, ready) if folder else Survey()
        usable = [text for text in ready if text not in own.unusable]
        for some in _attempts([*search_path(folder), *usable, *own.stand_ins], loader):
            try:
                return _trace(loader, some, texts or {})
            except UNTRACEABLE:
                continue
    return Provenance()


def _folder(config_dir: str | None) -> Path | None:
    """The user's folder; None where it is none, which was said before."""
    try:
        folder = user_path(config_dir, "--config-dir").absolute() if config_dir else None
        return folder if folder and folder.is_dir() else None
    except (Refused, ValueError):  # a NUL in it
        return None


def _attempts(overrides: list[str], loader: ConfigLoader) -> Iterator[list[str]]:
    """All overrides; failing that, those that Hydra takes one after the other; failing that, none."""
    yield overrides
    kept: list[str] = []
    for override in overrides:
        try:
            loader.compute_defaults_list("config", [*kept, override], RunMode.RUN)
        except UNTRACEABLE:
            continue
        kept.append(override)
    yield kept
    yield []


def _trace(loader: ConfigLoader, overrides: list[str], texts: Mapping[str, str]) -> Provenance:
    composed = loader.compute_defaults_list("config", overrides, RunMode.RUN)
    parsed = OverridesParser.create().parse_overrides(overrides)
    files = ConfigFiles(loader, parsed)
    history = History()
    for default in composed.defaults:
        package = default.package or ""
        if default.config_path and package.partition(".")[0] != "hydra":
            data, file, lines = files.content(default.config_path)
            history.add(package, data, partial(_place, file, lines))
    choices = chosen_in(composed.defaults_tree, files)
    values = [override for override in parsed if override in composed.config_overrides]
    for override in values:
        history.add_override(override.key_or_group, override.value(), _typed(override))
    for override in parsed:
        if override not in values and not override.key_or_group.startswith("hydra"):
            key = override.get_key_element().lstrip("+")
            choices.setdefault(key, []).append(Origin(value=override.value(), override=_typed(override)))
    for key, text in texts.items():
        history.add_override(key, text, f"{key}={text}")
    ours = {key: found for key, found in history.origins().items() if not key.startswith("hydra.")}
    return Provenance(values=ours, choices={key: tuple(found) for key, found in choices.items()})


def _place(file: str, lines: Lines, names: tuple[str, ...]) -> tuple[str, int]:
    """The file and line of a key; the line of the nearest key around it where YAML merged it in from elsewhere."""
    return file, next((lines[names[:end]] for end in range(len(names), 0, -1) if names[:end] in lines), 1)


def _typed(override: Override) -> str:
    """An override as its author wrote it: the conversion into a forced one is ours."""
    return (override.input_line or "").removeprefix("++")
