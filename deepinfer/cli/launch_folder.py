"""Writing a launch into a folder, and never over anything that somebody else put there or edited.

The folder may be absent, empty, or hold an earlier launch: then every file in it must be one of that launch and unchanged, by
the list of digests that the launch left (`sha256sum -c` reads it). Such files are replaced, or deleted where they are no
longer needed; anything else in the folder refuses the whole launch, and nothing is touched. Folders that are not a launch's own
stay, empty or not.

A launch may be cut short at any moment, and the next one takes its folder all the same. So what is to be written is listed
first, in a file of its own; each file appears whole, under a name of its own until then; and the list takes its place last.
Whatever lies there in between is as the old list says, as the new one says, or bears such a name.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from deepinfer.config.errors import Problem, Refused, listed
from deepinfer.plan.launch.readme import MANIFEST

NEXT = f"{MANIFEST}.next"  # the list of a launch that is not finished
PART = ".part"  # ends the name of a file that is not finished
SHOWN = 5  # strangers that a refusal names
ELSEWHERE = "out=ANOTHER"


class Earlier(Struct, frozen=True):
    """What launches before this one left: files, some perhaps unfinished, and who wrote which text."""

    files: frozenset[str]
    listed: Mapping[str, frozenset[str]]  # name → digests that lists give it


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` (name inside the folder → text); scripts are executable. Raises Refused, before anything is touched
    where that can be known."""
    try:
        _check_place(folder)
        earlier = _earlier(folder, files)
        _write(folder, files, earlier)
    except OSError as error:
        where = f" at {error.filename}" if error.filename and str(error.filename) != str(folder) else ""
        found = f"it cannot be written: {error.strerror}{where}"
        raise Refused([Problem(asked=f"out={folder}", found=found, fix=ELSEWHERE)]) from error


def _write(folder: Path, files: Mapping[str, str], earlier: Earlier) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    listing = "".join(f"{_digest(text.encode())}  {name}\n" for name, text in files.items())
    unfinished = earlier.listed if (folder / NEXT).exists() else {}
    also = "".join(f"{digest}  {name}\n" for name, digests in unfinished.items() for digest in sorted(digests))
    _put(folder / NEXT, also + listing)  # of several launches cut short in a row, no text is forgotten
    for name in earlier.files - files.keys() - {MANIFEST, NEXT}:
        (folder / name).unlink(missing_ok=True)
        _remove_empty(folder, name)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _put(folder / name, text)
    _put(folder / MANIFEST, listing)
    (folder / NEXT).unlink()


def _put(path: Path, text: str) -> None:
    """A file, all at once."""
    part = path.with_name(path.name + PART)
    part.write_text(text, encoding="utf-8")
    part.chmod(0o755 if text.startswith("#!") else 0o644)
    part.replace(path)


def _remove_empty(folder: Path, name: str) -> None:
    """Folders that held this file of an earlier launch, and hold nothing now."""
    for parent in list((folder / name).relative_to(folder).parents)[:-1]:
        if any((folder / parent).iterdir()):
            return
        (folder / parent).rmdir()


def _check_place(folder: Path) -> None:
    """Raises Refused where no folder can be, or be made."""
    if folder.is_dir():
        nearest = folder
    elif os.path.lexists(folder):
        found = "it is a link that leads to no folder" if folder.is_symlink() else "it is a file"
        raise Refused([Problem(asked=f"out={folder}", found=found, why="launch writes a folder", fix="out=DIR")])
    else:
        nearest = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
    found = "" if os.access(nearest, os.W_OK | os.X_OK) else f"nothing can be written into {nearest}"
    found = found if nearest.is_dir() else f"{nearest} is no folder"
    if found:
        raise Refused([Problem(asked=f"out={folder}", found=found, why="launch writes a folder", fix=ELSEWHERE)])


def _earlier(folder: Path, files: Mapping[str, str]) -> Earlier:
    """Files of earlier launches, all that are there. Raises Refused where something else is, or in the way."""
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")} if folder.is_dir() else {}
    known: dict[str, set[str]] = {}
    for listing in (MANIFEST, NEXT):
        for digest, name in _lines(folder / listing):
            known.setdefault(name, set()).add(digest)
    places = {parent.as_posix() for name in files for parent in list(Path(name).parents)[:-1]}
    names = {MANIFEST, NEXT, *files}
    names |= {name + PART for name in names | known.keys()}
    strangers = []
    for name, path in sorted(there.items()):
        if path.is_dir() and not path.is_symlink():
            ours = name not in names
        else:
            ours = name not in places and _is_ours(name, path, known)
        strangers += [] if ours else [name]
    if strangers:
        _refuse(folder, strangers)
    own = frozenset(name for name, path in there.items() if not path.is_dir())
    return Earlier(own, {name: frozenset(digests) for name, digests in known.items()})


def _is_ours(name: str, path: Path, known: Mapping[str, set[str]]) -> bool:
    """Whether a launch left this file as it is. Only names that a list has can be unfinished."""
    if path.is_symlink() or not path.is_file():
        return False
    whole = name.removesuffix(PART)
    if name in (MANIFEST, NEXT) or (name != whole and whole in {MANIFEST, NEXT, *known}):
        return True
    return _digest(path.read_bytes()) in known.get(name, ())


def _lines(listing: Path) -> Iterator[tuple[str, str]]:
    """Digests and names of a list; none of a link, or of what is no file."""
    if listing.is_file() and not listing.is_symlink():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            digest, _, name = line.partition("  ")
            yield digest, name


def _refuse(folder: Path, strangers: list[str]) -> None:
    more = [f"{len(strangers) - SHOWN} more"] if len(strangers) > SHOWN else []
    found = f"it holds what no launch left there so: {listed([*strangers[:SHOWN], *more])}"
    why = "launch replaces only its own files, as it wrote them"
    problem = Problem(asked=f"out={folder}", found=found.replace(" or ", " and "), why=why, fix=ELSEWHERE)
    raise Refused([problem])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
