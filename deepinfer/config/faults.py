"""What Hydra itself refuses, taken apart: which override is guilty, and what the message should have said."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.site_files import is_global, write_global
from deepinfer.config.specs import Spec

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
_IN_FILE = re.compile(r"In '([^']+)'")
NO_SLASH = "inside a group's file the name needs a leading slash"
_NO_MATCH = re.compile(r"(?:In '(?P<file>[^']+)': )?Could not override '(?P<what>[^']+)'")


def blame(
    overrides: Sequence[str], compose: Callable[[list[str]], Any], error: Exception, folder: Path | None
) -> tuple[list[str] | None, list[Problem]]:
    """The overrides that compose together, and a problem for each of the others (the failure path only).

    `folder` is the user's own, for the lines of its files.

    None instead of the former where even the bare configuration does not compose.
    """
    for index, override in enumerate(overrides):
        others = [*overrides[:index], *overrides[index + 1 :]]
        if _attempt(compose, others) is None:
            return others, [_explain(override, error, folder)]
    if (broken := _attempt(compose, [])) is not None:
        return None, [_explain("the configuration itself", broken, folder)]
    kept: list[str] = []
    problems = []
    for override in overrides:
        fault = _attempt(compose, [*kept, override])
        if fault is None:
            kept.append(override)
        else:
            problems.append(_explain(override, fault, folder))
    return kept, problems


def _attempt(compose: Callable[[list[str]], Any], overrides: list[str]) -> Exception | None:
    try:
        compose(overrides)
    except COMPOSITION_ERRORS as error:
        return error
    return None


def _explain(override: str, error: Exception, folder: Path | None) -> Problem:
    asked = override.removeprefix("++")
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        found = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        return Problem(asked=asked, found=found, why="the file is not valid YAML")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(asked, error, folder)
    match = _NO_MATCH.search(str(error))
    if match and match["file"] and "@deploy." in match["what"]:
        found = f"{match['file']}.yaml chooses options for the sides of a deployment ({match['what']})"
        fix = "deploy=disaggregated"
        return Problem(asked=asked, found=found, why="deploy=colocated has no sides", fix=fix)
    if match and match["file"] and match["file"] != "config":
        found = f"{match['file']}.yaml overrides {match['what']!r}, which is not in the defaults list"
        group, _, package = match["what"].partition("@")
        slashed, home = "/" not in group, f"{match['file'].partition('/')[0]}."
        name, place = group.rpartition("/")[2], package.removeprefix(home)
        group = name if place in ("", name) else f"{name}@{place}"
        file, line = _line_of(folder, match["file"], name) if folder else ("", 0)
        if file and not is_global(Path(file)):
            found = f"{match['file']}.yaml overrides /{group}, and its names begin in its own group"
            slash = "" if slashed else f", and override /{group} with the slash"
            why, fix = "only that first line lets a file reach the other groups", f"{write_global(file)}{slash}"
            return Problem(asked=asked, found=found, why=why, fix=fix, file=file, line=1)
        fix = f"override /{group}: … (in that file, whose first line is # @package _global_)"
        return Problem(asked=asked, found=found, why=NO_SLASH, fix=fix, file=file, line=line)
    group, _, side = asked.partition("=")[0].partition("@")
    if match and side in ("deploy.prefill", "deploy.decode"):
        fix = f"{group}@{side}.{group}={asked.partition('=')[2]}"
        return Problem(asked=asked, found="this place does not exist", why=f"a side's {group} has a name", fix=fix)
    if match and "@deploy." in match["what"]:
        why = "only a disaggregated deployment has sides of its own"
        return Problem(asked=asked, found="this place does not exist", why=why, fix=f"deploy=disaggregated {asked}")
    if "Unsupported item value in defaults" in str(error):
        why = "YAML reads off, no, null and bare numbers as something else than text"
        return Problem(
            asked=asked, found="a defaults list names an option that is not text", why=why, fix="put it in quotes"
        )
    return Problem(asked=asked, found=str(error).strip().splitlines()[0])


def _missing(asked: str, error: MissingConfigException, folder: Path | None) -> Problem:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    options = list(error.options or ())
    close = nearest(option, options)
    named = _IN_FILE.match(str(error))
    path = named[1] if named and named[1] != "config" else asked.replace("=", "/")  # an `override` loses its file
    file, line = _line_of(folder, path, option) if folder else ("", 0)
    return Problem(
        asked=asked,
        found=f"there is no option {option!r} in group {group}",
        why=f"there are {listed(options)}" if options else "there is no such group",
        fix=f"{group}={close}" if close else "",
        file=file,
        line=line,
    )


def _line_of(folder: Path, config_path: str, word: str) -> tuple[str, int]:
    """A file of the user's own and the first of its lines with a word; "" and 0 for a file that is not theirs."""
    file = folder / f"{config_path}.yaml"
    if not file.is_file():
        return "", 0
    lines = file.read_text("utf-8").splitlines()
    return str(file), next((number for number, text in enumerate(lines, 1) if word in text), 0)


def check_choices(choices: Mapping[str, Any]) -> list[Problem]:
    """Each group took exactly one option. (Hydra merges a list silently, and then records no choice at all.)"""
    return [
        Problem(asked=group, found="not exactly one option was chosen", why="a defaults list names several, or none")
        for group in Spec.__struct_fields__
        if not isinstance(choices.get(group), str)
    ]


def broken_values(config: DictConfig) -> dict[str, Problem]:
    """Every value whose interpolation leads nowhere: its path → what is wrong."""
    problems = {}
    for path, value in _leaves(OmegaConf.to_container(config, resolve=False), ""):
        if not (isinstance(value, str) and "${" in value):
            continue
        try:
            OmegaConf.select(config, path)
        except OmegaConfBaseException as error:
            found = str(error).strip().splitlines()[0]
            why = "${…} names another key of the configuration"
            problems[path] = Problem(asked=f"{path}={value}", found=found, why=why)
    return problems


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, f"{path}[{index}]")]
    return [(path, value)]
