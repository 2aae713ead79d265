"""The two files of a batch, answers and failures: appended record by record, and taken up again after any end.

Each holds its records in the order of the input. Which lines are done is told by both together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from deepinfer.serving.result_file import ForeignOutput

if TYPE_CHECKING:
    from deepinfer.serving.batch_file import Line

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

_BEGINNING = b'{"line": '  # of every record; what begins otherwise is not ours


class BatchFiles:
    """Opened for one run. `done` are the numbers of lines that have a record by now; `failed` counts records of failures.

    A last record without its line end was cut off by a crash: it is removed and made again. Raises ForeignOutput, touching
    nothing, where a file holds anything else than records of `lines`.
    """

    def __init__(self, output: Path, errors: Path, lines: Iterable[Line]) -> None:
        self.done: set[int] = set()
        self._files: dict[Path, BinaryIO] = {}
        self.output, self.errors = output, errors
        try:
            for path in (output, errors):
                self._files[path] = self._opened(path)
            ends = self._checked({line.number: line.digest for line in lines})
            for path, file in self._files.items():
                file.truncate(ends[path])
                file.seek(0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    def write(self, record: dict[str, Any], *, failed: bool) -> None:
        """Append one record; it is on the disk when this returns."""
        file = self._files[self.errors if failed else self.output]
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        file.write(text.encode(errors="backslashreplace") + b"\n")  # half a surrogate pair as its JSON escape
        file.flush()
        os.fsync(file.fileno())
        self.done.add(record["line"])
        self.failed += failed

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def __enter__(self) -> BatchFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, path: Path) -> BinaryIO:
        if path.exists() and not path.is_file():
            raise ForeignOutput(f"{path} is not a regular file: name another")
        file: BinaryIO = path.open("a+b")
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                raise ForeignOutput(f"{path} is being written by another run: wait, or name another") from error
        return file

    def _checked(self, digests: dict[int, str]) -> dict[Path, int]:
        """The byte at which the whole records of each file end."""
        ends = {}
        for path, file in self._files.items():
            file.seek(0)
            ends[path] = number = 0
            for number, data in enumerate(file, start=1):
                if not data.endswith(b"\n"):
                    if not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
                        raise _foreign(path, "it ends in something that is no record")
                    number -= 1
                    break
                self._check_record(path, number, data, digests)
                ends[path] += len(data)
            if path == self.errors:
                self.failed = number
        return ends

    def _check_record(self, path: Path, number: int, data: bytes, digests: dict[int, str]) -> None:
        try:
            found = json.loads(data)
            line, digest = found["line"], found["digest"]
        except (ValueError, KeyError, TypeError):
            raise _foreign(path, f"its line {number} is no record") from None
        if digests.get(line) != digest or line in self.done:
            raise _foreign(path, f"its record {number} is of another line, or was made with other settings")
        self.done.add(line)


def _foreign(path: Path, why: str) -> ForeignOutput:
    told = f"{path} exists and is not of this run: {why}; name another file, or remove it to start afresh"
    return ForeignOutput(told)
