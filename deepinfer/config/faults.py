"""What Hydra itself refuses, taken apart: which override is guilty, and what the message should have said."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.specs import Spec

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)
_NO_MATCH = re.compile(r"(?:In '(?P<file>[^']+)': )?Could not override '(?P<what>[^']+)'")


def blame(
    overrides: Sequence[str], compose: Callable[[list[str]], Any], error: Exception
) -> tuple[list[str] | None, list[Problem]]:
    """The overrides that compose together, and a problem for each of the others (the failure path only).

    None instead of the former where even the bare configuration does not compose.
    """
    if (broken := _attempt(compose, [])) is not None:
        return None, [_explain("the configuration itself", broken)]
    for index, override in enumerate(overrides):
        others = [*overrides[:index], *overrides[index + 1 :]]
        if _attempt(compose, others) is None:
            return others, [_explain(override, error)]
    kept: list[str] = []
    problems = []
    for override in overrides:
        fault = _attempt(compose, [*kept, override])
        if fault is None:
            kept.append(override)
        else:
            problems.append(_explain(override, fault))
    return kept, problems


def _attempt(compose: Callable[[list[str]], Any], overrides: list[str]) -> Exception | None:
    try:
        compose(overrides)
    except COMPOSITION_ERRORS as error:
        return error
    return None


def _explain(override: str, error: Exception) -> Problem:
    asked = override.removeprefix("++")
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        found = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
        return Problem(asked=asked, found=found, why="the file is not valid YAML")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing(asked, error)
    match = _NO_MATCH.search(str(error))
    if match and match["file"] and match["file"] != "config":
        found = f"{match['file']}.yaml overrides {match['what']!r}, which is not in the defaults list"
        group = match["what"].rsplit("@", 1)[-1].rsplit("/", 1)[-1]
        fix = f"override /{group}: … (in that file, whose first line is # @package _global_)"
        return Problem(asked=asked, found=found, why="inside a group's file the name needs a leading slash", fix=fix)
    if match and "@deploy." in match["what"]:
        why = "only a disaggregated deployment has sides of its own"
        return Problem(asked=asked, found="this place does not exist", why=why, fix=f"deploy=disaggregated {asked}")
    if "Unsupported item value in defaults" in str(error):
        why = "YAML reads off, no, null and bare numbers as something else than text"
        return Problem(
            asked=asked, found="a defaults list names an option that is not text", why=why, fix="put it in quotes"
        )
    return Problem(asked=asked, found=str(error).strip().splitlines()[0])


def _missing(asked: str, error: MissingConfigException) -> Problem:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    options = list(error.options or ())
    close = nearest(option, options)
    file = re.match(r"In '([^']+)'", str(error))
    source = f"{file[1]}.yaml asks for" if file and file[1] != "config" else "there is"
    return Problem(
        asked=asked,
        found=f"{source} no option {option!r} in group {group}"
        if source == "there is"
        else f"{source} {group}/{option}",
        why=f"there are {listed(options)}" if options else "there is no such group",
        fix=f"{group}={close}" if close else "",
    )


def check_choices(choices: Mapping[str, Any]) -> list[Problem]:
    """Each group took exactly one option. (Hydra merges a list silently, and then records no choice at all.)"""
    return [
        Problem(asked=group, found="not exactly one option was chosen", why="a defaults list names several, or none")
        for group in Spec.__struct_fields__
        if not isinstance(choices.get(group), str)
    ]


def broken_values(config: DictConfig) -> list[Problem]:
    """A problem for every value whose interpolation leads nowhere."""
    problems = []
    for path, value in _leaves(OmegaConf.to_container(config, resolve=False), ""):
        if not (isinstance(value, str) and "${" in value):
            continue
        try:
            OmegaConf.select(config, path)
        except OmegaConfBaseException as error:
            found = str(error).strip().splitlines()[0]
            problems.append(
                Problem(asked=f"{path}={value}", found=found, why="${…} names another key of the configuration")
            )
    return problems


def _leaves(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, f"{path}[{index}]")]
    return [(path, value)]
