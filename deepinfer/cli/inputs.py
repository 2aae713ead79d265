"""The files that a command reads beside option files, as a fingerprint: results made of other files are not taken again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.config.argv import PATH_WORDS
from deepinfer.config.keys import text_keys
from deepinfer.config.paths import user_path

if TYPE_CHECKING:
    from deepinfer.config.specs import Spec

_KEYS = ("path",)  # last parts of keys that name files: model.path, cost.path, workload.path
_RESULTS = ("out", "output")  # written, not read


def inputs_digest(specs: Iterable[Spec], words: dict[str, str]) -> str:
    """A digest of name, size and time of change of every file that specs and strings name; of a folder of all in it.

    Empty where they name none. Contents are not read: a checkpoint has hundreds of gigabytes.
    """
    named = {(word, words[word]) for word in PATH_WORDS if word in words and word not in _RESULTS}
    named |= {each for spec in specs for each in _paths_of(spec)}
    lines = [line for key, text in sorted(named) for line in _stats(key, user_path(text, key))]
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).hexdigest() if lines else ""


def _paths_of(spec: Spec) -> Iterator[tuple[str, str]]:
    for key in text_keys():
        if key.rpartition(".")[2] in _KEYS:
            value: Any = spec
            for name in key.split("."):
                value = getattr(value, name, None)
            if isinstance(value, str) and value:
                yield key, value


def _stats(key: str, path: Path) -> Iterator[str]:
    try:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in inside:
            if file.is_file():
                stat = file.stat()
                yield f"{key} {file} {stat.st_size} {stat.st_mtime_ns}"
    except OSError as error:  # the run itself says what is wrong with it
        yield f"{key} {path} {error.strerror}"
