"""The generated configuration reference is up to date."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_configuration_reference_is_current() -> None:
    check = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], check=False)
    assert check.returncode == 0, "out of date; type: python docs/generate.py"
