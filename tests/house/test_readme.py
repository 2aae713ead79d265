"""What the README and the examples tell people to type is typed here."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SHELL = [
    line for kind, text in BLOCKS if kind in ("sh", "bash", "console") for line in text.splitlines() if line.strip()
]
COMMANDS = [line.removeprefix("$ ").partition(" #")[0].strip() for line in SHELL]
OURS = [line for line in COMMANDS if re.match(r"(python -m )?deepinfer\b|python examples/", line)]
MAKES = [line for line in COMMANDS if line.startswith("make ")]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
DEVICES = {"hardware=ascend950", "hardware=h200"}  # a run (not a plan) on one that is not here ends with exit code 4


def test_readme_fits_on_a_screen_and_shows_something() -> None:
    assert PROGRAMS and OURS and MAKES
    assert len(README.splitlines()) <= 120


def check_server(words: list[str], folder: Path) -> None:
    """It does not end by itself: it is told to once it is ready."""
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        for line in server.stderr:
            if line.startswith("deepinfer: ready"):
                server.terminate()
    assert server.returncode == 0


@pytest.mark.parametrize("command", OURS)
def test_command(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if "examples/" in command:
        launch, words = [str(ROOT / words[1])], words[2:]
    else:
        launch, words = ["-m", "deepinfer"], words[words.index("deepinfer") + 1 :]
    if words[:1] == ["serve"]:
        return check_server([*launch, *words, "serving.port=0"], tmp_path)
    done = subprocess.run([sys.executable, *launch, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    wants_device = bool(DEVICES & set(words)) and "plan" not in words
    assert done.returncode in ((0, 4) if wants_device else (0,)), done.stderr
    assert done.stdout or "accelerator" in done.stderr


@pytest.mark.parametrize("command", MAKES)
def test_make_target_exists(command: str) -> None:
    words = [word for word in shlex.split(command) if not word.startswith("#")]
    subprocess.run([*words, "--dry-run"], capture_output=True, cwd=ROOT, check=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_offline_example(tmp_path: Path) -> None:
    example = ROOT / "examples" / "offline.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
