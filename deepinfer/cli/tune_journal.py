"""Optuna's journal of a search: opened only as whole lines, whatever a kill or a full disk left of it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec

from deepinfer.cli.out_folder import naming
from deepinfer.cli.points_file import FILE as POINTS
from deepinfer.config.errors import ExitCode, Problem, Refused

JOURNAL = "search.journal"


def mend(folder: Path) -> None:
    """Cut off a last line without an end, and the lock of a process that was killed; the folder is ours alone.

    Raises Refused for a journal that holds something else than lines of JSON. The points do not depend on it.
    """
    path = folder / JOURNAL
    with naming(path):
        (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
    for number, line in enumerate(whole.splitlines(), 1):
        if not _is_entry(line):
            found = f"line {number} is no entry of a search"
            why = f"without it the search begins again and takes what is in {folder / POINTS} without working it out"
            fix = f"rm {shlex.quote(str(path))}"
            raise Refused([Problem(asked=str(path), found=found, why=why, fix=fix, code=ExitCode.OTHER)])


def _is_entry(line: bytes) -> bool:
    try:
        return "op_code" in msgspec.json.decode(line, type=dict)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
