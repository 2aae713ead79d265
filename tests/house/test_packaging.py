"""The package works from a checkout that was never installed, and its parts lie where their readers look."""

import subprocess
import sys
import tomllib
from pathlib import Path

import deepinfer

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_kernels_is_no_package_of_its_own() -> None:
    """kernels/__init__.py would shadow Hugging Face's `kernels` for whoever runs from the checkout."""
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "conf" / "__init__.py").is_file()  # Hydra's pkg:// needs it


def test_checkout_that_was_never_installed(tmp_path: Path) -> None:
    """Only third-party packages are visible; ours is found by its path alone."""
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p != sys.argv[1]]; sys.path.insert(0, sys.argv[1]);"
        "sys.meta_path[:] = [f for f in sys.meta_path if '__editable__' not in repr(f)];"
        "from importlib.resources import files; from deepinfer.config.compose import load;"
        "print(load('parallel=ep64').parallel.num_ranks, (files('deepinfer.conf') / 'config.yaml').is_file())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.stdout, done.returncode) == ("64 True\n", 0), done.stderr


def test_version_is_said_once() -> None:
    assert PROJECT["project"]["version"] == deepinfer.__version__


def test_licence() -> None:
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert text.lstrip().startswith("Apache License\n") and "END OF TERMS AND CONDITIONS" in text
    assert len(text.splitlines()) == 201


def test_command_and_module_are_one() -> None:
    assert PROJECT["project"]["scripts"] == {"deepinfer": "deepinfer.__main__:main"}


def test_nobody_is_told_to_install_the_other_deepinfer() -> None:
    """The name belongs to somebody else on the package index; ours installs from the checkout."""
    for path in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "deepinfer").rglob("*.py")),
    ]:
        assert "pip install deepinfer" not in path.read_text("utf-8"), path


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    declared = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]
    told = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for target in declared:
        assert f"make {target}" in told
