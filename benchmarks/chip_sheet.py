"""The chips of conf/hardware, for benchmarks that do without the package; and whether a device is one of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[1] / "conf" / "hardware"


def chip_facts(chip: str) -> dict[str, Any]:
    """One file of conf/hardware, with what the file that it builds on says besides."""
    facts = yaml.safe_load((CONF / f"{chip}.yaml").read_text())
    for base in facts.pop("defaults", []):
        if base != "_self_":
            facts = chip_facts(base) | facts
    return facts


def another_chip(chip: str, device: str, words: Sequence[str], architecture: str) -> str:
    """Why what is measured would bear the name of a chip that it is not of; empty where device and chip are one.

    `words`: of the device's name. One that is called like none of our files has to share a word with the sheet's name, the
    maker's aside: a GH200 is no H200.
    """
    facts = chip_facts(chip)
    wanted, own = facts.get("name", chip), next((word for word in words if (CONF / f"{word}.yaml").is_file()), "")
    fits = facts["kind"] == device and facts["architecture"]["value"] == architecture
    named = chip_facts(own)["name"] == wanted if own else set(words[1:]) & set(wanted.lower().split())
    if fits and named:
        return ""
    return f"--chip {chip} is {wanted}, and the device here is {' '.join(words)} ({architecture}): nothing was measured"
