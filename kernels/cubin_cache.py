"""Compiled kernels in the user's cache folder: whole or not at all, and compiled again where one is damaged or cannot be read.

A file is a cubin and behind it its SHA-256.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deepinfer.config.env import foreign

_DIGEST_BYTES = 32


def cubin_folder() -> Path | None:
    """Where cubins are kept; None where there is neither a home directory nor a cache of the user's. A relative XDG_CACHE_HOME
    is ignored, as its specification says."""
    xdg = Path(foreign().xdg_cache_home or "")
    try:
        base = xdg if xdg.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "deepinfer" / "cubins" if base.is_absolute() else None


def kept_or_made(name: str, make: Callable[[], bytes]) -> bytes:
    """The cubin of that name; made, and kept for the next process, where there is none that can be trusted."""
    folder = cubin_folder()
    if folder is None:
        return make()
    path = folder / f"{name}.cubin"
    cubin = _kept(path)
    if not cubin:
        cubin = make()
        _keep(path, cubin)
    return cubin


def _kept(path: Path) -> bytes:
    """The cubin, or nothing where it is absent, damaged or out of reach."""
    try:
        raw = path.read_bytes()
    except (OSError, ValueError):  # a folder's name may hold what no file system takes
        return b""
    cubin, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
    return cubin if hashlib.sha256(cubin).digest() == digest else b""


def _keep(path: Path, cubin: bytes) -> None:
    """Whole or not at all, whoever else writes it. Where it cannot be written the next process compiles again, no more."""
    with suppress(OSError, ValueError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(cubin + hashlib.sha256(cubin).digest())
                file.flush()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
