"""What to type for an optional part of deepinfer: from a checkout its extra, from a wheel the libraries themselves."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import deepinfer


def how_to_install(extra: str) -> str:
    """The pip command for one of the extras of pyproject.toml."""
    root = Path(deepinfer.__file__).parent.parent
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]'"
    try:
        found = requires("deepinfer") or []
    except PackageNotFoundError:
        found = []
    libraries = [text.partition(";")[0].strip() for text in found if re.search(rf"extra *== *['\"]{extra}['\"]", text)]
    return f"pip install {shlex.join(libraries)}" if libraries else f"pip install 'deepinfer[{extra}]'"
