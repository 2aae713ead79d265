"""What `doctor` says to install for a target brings what the target lacks."""

import re
import tomllib
from pathlib import Path

import pytest
from msgspec import structs

from deepinfer.config.facts import chip_sheets
from deepinfer.config.probes import probe_machine
from deepinfer.plan.prerequisites import targets

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SHEETS = {option: sheet for option, sheet in chip_sheets().items() if sheet["kind"] != "virtual"}


@pytest.mark.parametrize("option", SHEETS)
def test_an_extra_that_a_target_is_told_to_install_has_the_library(option: str) -> None:
    declared = {(extra, name) for extra, lines in EXTRAS.items() for name in map(_name, lines)}
    bare = structs.replace(probe_machine(), libraries={})
    (target,) = targets({option: SHEETS[option]}, bare)
    told = [(match[1], f.what) for f in target.findings if (match := re.search(r"'\.\[([\w-]+)\]'", f.how))]
    assert set(told) <= declared and (option == "cpu" or told)
    if SHEETS[option]["kind"] == "ascend":
        assert {extra for extra, _ in told} == {"ascend"}


def _name(line: str) -> str:
    return re.split(r"[<>=;]", line)[0].strip()
