"""Writing a launch into a folder, and never over anything that somebody else put there or edited.

The folder may be absent, empty, or hold an earlier launch: then every file in it must be one of that launch and unchanged, by
the list of digests that the launch left (`sha256sum -c` reads it). Such files are replaced, or deleted where they are no
longer needed; anything else in the folder refuses the whole launch, and nothing is touched.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from deepinfer.config.errors import Problem, Refused, listed
from deepinfer.plan.launch.readme import MANIFEST

SHOWN = 5  # strangers that a refusal names


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` (name inside the folder → text); scripts are executable. Raises Refused, or OSError as it comes."""
    earlier = _own_files(folder)
    listing = "".join(f"{_digest(text.encode())}  {name}\n" for name, text in files.items())
    for name in earlier - files.keys() - {MANIFEST}:
        (folder / name).unlink()
    (folder / MANIFEST).unlink(missing_ok=True)  # a launch that is cut short has no list, and is not taken for one
    for name, text in [*files.items(), (MANIFEST, listing)]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    _remove_empty(folder)


def _own_files(folder: Path) -> set[str]:
    """Files of an earlier launch, all that are there. Raises Refused where something else is."""
    asked = f"out={folder}"
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise Refused([Problem(asked=asked, found="it is a file", why="launch writes a folder", fix="out=DIR")])
    there = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()
    }
    listing = folder / MANIFEST
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines() if listing.is_file() else []
    known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    strangers = sorted(name for name in there - {MANIFEST} if not _is_as_written(folder / name, known.get(name)))
    if strangers:
        more = [f"{len(strangers) - SHOWN} more"] if len(strangers) > SHOWN else []
        found = f"it holds what no launch left there so: {listed([*strangers[:SHOWN], *more])}"
        why = "launch replaces only its own files, as it wrote them"
        raise Refused([Problem(asked=asked, found=found.replace(" or ", " and "), why=why, fix="out=ANOTHER")])
    return there


def _is_as_written(path: Path, digest: str | None) -> bool:
    return digest is not None and path.is_file() and not path.is_symlink() and _digest(path.read_bytes()) == digest


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _remove_empty(folder: Path) -> None:
    """Folders of an earlier launch that have no file left."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
