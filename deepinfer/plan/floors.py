"""What must be installed at least, and whether it is."""

import re
from collections.abc import Iterable

from deepinfer.config.chips import Chip
from deepinfer.config.libraries import BY_NAME
from deepinfer.config.probes import MachineFacts
from deepinfer.plan.catalog import Backend
from deepinfer.plan.types import Floor

_NUMBERS = re.compile(r"\d+")


def floors_of(chip: Chip, backends: Iterable[Backend]) -> tuple[Floor, ...]:
    """Floors of the chip, then of the libraries that the chosen backends need."""
    found = [
        Floor(what=what, at_least=fact.value, why=fact.source)
        for facts in (chip.platform, chip.toolkit)
        for what, fact in facts.items()
    ]
    for backend in backends:
        found += [
            Floor(what=name, at_least=BY_NAME[name].at_least, why=f"{backend.name}: {backend.about}")
            for name in backend.libraries
        ]
    return tuple(found)


def found_version(what: str, machine: MachineFacts) -> str:
    """The version of `what` on a machine; empty where it is not there."""
    if what == "os":
        return machine.system
    if what == "python":
        return machine.python
    return machine.toolkits.get(what) or machine.libraries.get(what, "")


def meets(found: str, at_least: str) -> bool:
    """Whether a version reaches a floor. Text without numbers must be equal; an empty floor is met by any."""
    if not found:
        return False
    if not _NUMBERS.search(at_least):
        return not at_least or found == at_least
    have, want = _numbers(found), _numbers(at_least)
    return have + [0] * (len(want) - len(have)) >= want


def _numbers(version: str) -> list[int]:
    """Leading numbers of a version: "9.2.RC1" → [9, 2]. A release candidate counts as its release."""
    numbers = []
    for part in version.split("+")[0].split("."):
        leading = re.match(r"\d+", part)
        if leading is None:
            break
        numbers.append(int(leading.group()))
    return numbers
