"""The folder that a sweep or search writes: one process at a time, refused before anything runs where it cannot be used."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.paths import user_path

LOCK = "lock"
_FILES = (LOCK, "points.jsonl", "pareto.png", "search.journal", "bench.jsonl")
_FOLDERS = ("jobs", "best")


def open_folder(out: str | None) -> Path:
    """The folder of a sweep or search, made where it is not there: `out`, or a new one, runs/ and the time.

    Raises Refused where none can be made, or where something in it is a folder instead of a file or a file instead of one.
    """
    folder = Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S") if out is None else user_path(out, "out")
    try:
        folder = _new(folder) if out is None else folder
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = f"no folder can be made there: {error.strerror}"
        raise Refused([Problem(asked=f"out={folder}", found=found, fix="out=…")]) from error
    problems = [_in_the_way(folder / name, "a folder") for name in _FILES if (folder / name).is_dir()]
    problems += [
        _in_the_way(folder / name, "no folder")
        for name in _FOLDERS
        if (folder / name).exists() and not (folder / name).is_dir()
    ]
    if problems:
        raise Refused(problems)
    return folder


@contextmanager
def locked_folder(out: str | None) -> Iterator[Path]:
    """As `open_folder`, held until left: results of two commands in one folder would be taken for one another's.

    The system frees the lock of a process that was killed. Raises Refused where another process holds it.
    """
    folder = open_folder(out)
    with naming(folder / LOCK):
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused([_held(folder, os.pread(descriptor, 32, 0))]) from None
        except OSError as error:  # a file system without locks
            told = f"{folder} cannot be locked ({error.strerror}): see that no other command writes to it"
            print(f"deepinfer: {told}", file=sys.stderr)
        with naming(folder / LOCK):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield folder
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """While entered, what the system refuses (a full disk, say) is told with the file that could not be written.

    Raises Refused in place of OSError, exit class OTHER.
    """
    try:
        yield
    except BrokenPipeError:  # a reader that has gone, which is no file
        raise
    except OSError as error:
        asked = os.fspath(error.filename) if isinstance(error.filename, str | Path) else str(path)
        why = "what was written before is kept; once it can be written the same command goes on"
        found = f"it cannot be written: {error.strerror or error}"
        raise Refused([Problem(asked=asked, found=found, why=why, code=ExitCode.OTHER)]) from error


def _new(folder: Path) -> Path:
    """The folder, or the same name with a number where another command of this second has taken it. It is made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    number, wanted = 1, folder
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
        else:
            return folder


def _in_the_way(path: Path, what: str) -> Problem:
    return Problem(asked=f"out={path.parent}", found=f"{path} is {what}", why="results are written there", fix="out=…")


def _held(folder: Path, holder: bytes) -> Problem:
    process = f", process {holder.decode().strip()}" if holder.strip().isdigit() else ""
    found = f"another command is writing there{process}"
    why = "its results and those of this one would be taken for one another's; wait for it, or take another folder"
    return Problem(asked=f"out={folder}", found=found, why=why, fix="out=…", code=ExitCode.OTHER)
