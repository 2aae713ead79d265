"""Keys of a chip that were set on a side which runs on the top level's chip (hardware=same, which has no keys)."""

import re
from collections.abc import Iterable, Mapping

from msgspec import structs

from deepinfer.config.errors import Problem

_CHOICE = re.compile(r"(?P<place>hardware@deploy\.(prefill|decode)\.hardware)=\S+")


def with_top_chip(problems: Iterable[Problem], choices: Mapping[str, str]) -> list[Problem]:
    """The problems, whose fixes give such a side the chip that it has already, by name; `choices` are the options taken."""
    return [_with_top_chip(problem, choices) for problem in problems]


def _with_top_chip(problem: Problem, choices: Mapping[str, str]) -> Problem:
    match, top = _CHOICE.match(problem.fix), choices.get("hardware", "")
    if not match or choices.get(match["place"]) != "same" or top in ("", "auto", "same"):
        return problem
    why = f"it runs on the chip of the top level, {top}, whose keys it gets by that name"
    return structs.replace(problem, why=why, fix=f"{match['place']}={top}{problem.fix[match.end() :]}")
