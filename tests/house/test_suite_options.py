"""The suite's own switches: what a plain run leaves out, and that a seed repeats it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROGRAM = """
import pytest

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.sample(3)
@pytest.mark.parametrize("case", range(50))
def test_many(case):
    pass

def test_seed(sample_seed, full):
    print(f"seed {sample_seed} full {full}")
"""

ON_A_DEVICE = """
import pytest

@pytest.mark.gpu
def test_device():
    raise AssertionError("no device is here")
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text(
        (TESTS.parent / "pytest.ini").read_text("utf-8").replace("testpaths = tests", "")
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def cases(output: str) -> list[str]:
    return re.findall(r"test_many\[(\d+)\]", output)


def test_plain_run_is_a_seeded_sample(suite: Path) -> None:
    first, again = run(suite, "--sample-seed=5"), run(suite, "--sample-seed=5")
    assert "sampled, --sample-seed=5" in first
    assert "seed 5 full False" in first
    assert len(cases(first)) == 3
    assert cases(first) == cases(again)
    assert "test_slow" not in first
    assert "48 deselected" in first
    others = [cases(run(suite, f"--sample-seed={seed}")) for seed in (6, 7)]
    assert any(other != cases(first) for other in others)


def test_full_run_is_whole(suite: Path) -> None:
    output = run(suite, "--full")
    assert len(cases(output)) == 50
    assert "test_slow PASSED" in output
    assert "full True" in output


def test_device_tests_are_skipped_without_a_device(suite: Path) -> None:
    import torch

    if torch.cuda.device_count() == 0:
        (suite / "test_program.py").write_text(ON_A_DEVICE)
        assert "needs 1 CUDA device(s)" in run(suite)
