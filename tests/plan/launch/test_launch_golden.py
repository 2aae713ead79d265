"""Every launcher's files against golden ones, but plan.json, which has tests of its own.

After a wanted change: UPDATE = True, run once, read the diff, set it back.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.plan.launch.job import PLAN_FILE, Rendered
from deepinfer.plan.types import Plan

UPDATE = False
GOLDEN = Path(__file__).parent / "golden"
NAMES = ("torchrun", "slurm", "kubernetes", "ray", "local")


def name_of(file: str) -> str:
    """A golden Python file is data, which no formatter must touch."""
    return f"{file}.txt" if file.endswith(".py") else file


@pytest.mark.parametrize("name", NAMES)
def test_golden_files(
    name: str,
    case_of: Callable[[str], tuple[Plan, Rendered]],
    without_digests: Callable[[Plan, str], str],
) -> None:
    plan, rendered = case_of(name)
    files = {name_of(file): without_digests(plan, text) for file, text in rendered.files.items() if file != PLAN_FILE}
    folder = GOLDEN / name
    if UPDATE:
        shutil.rmtree(folder, ignore_errors=True)
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
    golden = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert golden == files.keys()
    for file, text in files.items():
        assert text == (folder / file).read_text(encoding="utf-8"), file


def test_all_golden_files_are_used() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(NAMES)
    assert not UPDATE
