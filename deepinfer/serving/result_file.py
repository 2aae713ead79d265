"""The output of a batch: appended record by record, each on the disk before the next, and taken up again after any end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from deepinfer.serving.batch_file import Line

try:
    import fcntl
except ImportError:  # Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

_BEGINNING = b'{"line": '  # of every record; what begins otherwise is not ours


class ForeignOutput(ValueError):
    """The output file exists and does not hold the beginning of this very run."""


class ResultFile:
    """Opened for one run; `done` counts the records that are there already, `failed` those of them that hold an error.

    A last record without its line end was cut off by a crash: it is removed and made again. Raises ForeignOutput, touching
    nothing, where the records are not those of `lines` in their order.
    """

    def __init__(self, path: Path, lines: Iterable[Line]) -> None:
        self.path = path
        self.failed = 0
        if path.exists() and not path.is_file():  # a device may have no end, and a pipe cannot be read again
            raise ForeignOutput(f"output={path} is not a regular file: name another")
        self._file: BinaryIO = path.open("a+b")
        try:
            self._lock()
            self.done, end = self._check(iter(lines))
            self._file.truncate(end)
            self._file.seek(0, os.SEEK_END)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; it is on the disk when this returns."""
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode(errors="backslashreplace") + b"\n")  # half a surrogate pair as its JSON escape
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ForeignOutput(
                f"output={self.path} is being written by another run: wait for it, or name another"
            ) from error

    def _check(self, lines: Any) -> tuple[int, int]:
        """How many whole records there are, and the byte at which they end."""
        self._file.seek(0)
        count = end = 0
        for data in self._file:
            if not data.endswith(b"\n"):
                if not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
                    raise self._foreign("it ends in something that is no record")
                break
            line = next(lines, None)
            if line is None:
                raise self._foreign(f"it has more records than the input has lines ({count})")
            try:
                found = json.loads(data)
                same = (found["line"], found["digest"]) == (line.number, line.digest)
            except (ValueError, KeyError, TypeError):
                raise self._foreign(f"its line {count + 1} is no record") from None
            if not same:
                raise self._foreign(f"its record {count + 1} is of another line, or was made with other settings")
            self.failed += any("error" in answer for answer in found.get("answers") or [found])
            count, end = count + 1, end + len(data)
        return count, end

    def _foreign(self, why: str) -> ForeignOutput:
        return ForeignOutput(
            f"output={self.path} exists and is not the beginning of this run: {why}; "
            "name another output=, or remove the file to start afresh"
        )
