"""examples/offline.py as a reader would run it, and on the golden checkpoint."""

import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.config.facts import shipped_folder

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "offline.py"
GOLDEN = ROOT / "tests" / "fixtures" / "golden" / "tiny_a"


def run(script: Path, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_runs_on_the_golden_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "offline.py"
    text = EXAMPLE.read_text()
    assert text.count('"model=v41_tiny"') == 1
    text = text.replace('"model=v41_tiny"', f'"model.path={GOLDEN}", "model.max_model_len=256"')
    script.write_text(text.replace("max_tokens=48", "max_tokens=4").replace("max_tokens=16", "max_tokens=4"))
    lines = run(script, tmp_path)
    assert len(lines) >= 3 and lines[0].startswith("[0, ") and lines[0].endswith("length")


@pytest.mark.skipif(
    not list(shipped_folder("v41_tiny").glob("*.safetensors")), reason="the trained weights are not here"
)
def test_the_example_answers(tmp_path: Path) -> None:
    assert "42" in run(EXAMPLE, tmp_path)[-1]
