"""The generated configuration reference is up to date and whole; links of the pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.config.keys import leaf_keys

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = (ROOT / "docs" / "configuration.md").read_text("utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_configuration_reference_is_current() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], check=False)
    assert check.returncode == 0, "out of date; type: python docs/generate.py"


def test_every_key_is_explained() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| [^|]+ \| (.*) \|$", REFERENCE, re.MULTILINE))
    sourced = (
        "cost.architectures.",
        "cost.own_kernels.",
        "cost.system_share.",
    )  # like chips: every figure carries its own source
    keys = {
        key.removesuffix(".*")
        for key in leaf_keys()
        if not key.endswith(".kind") and "hardware." not in key and not key.startswith(sourced)
    }
    assert keys <= rows.keys(), keys - rows.keys()
    assert all(rows[key].strip() for key in keys), [key for key in keys if not rows[key].strip()]


@pytest.mark.parametrize("word", ["prompt=", "prompts=", "output=", "format=", "explain="])
def test_words_of_verbs_are_in_the_reference(word: str) -> None:
    assert re.search(rf"^\| `{word}[^`]+` \| \w", REFERENCE, re.MULTILINE)


def test_options_that_build_on_another_are_marked_too() -> None:
    for option in ("ascend950", "ascend950dt", "b200", "gb300"):
        assert re.search(rf"^\| `hardware={option}` .*\*planned\* \|$", REFERENCE, re.MULTILINE)
    for option in ("cpu", "h100", "h200"):
        assert not re.search(rf"^\| `hardware={option}` .*planned", REFERENCE, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        if "://" in target or target.startswith(("#", "mailto:")):
            continue
        path = target.partition("#")[0]
        assert (page.parent / path).exists(), f"{page.name} links to {target}"
