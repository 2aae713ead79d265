"""Responses that can be fetched and continued, in SQLite: one thread, a time to live, a size limit, owners apart.

A file is opened for one server alone, in WAL mode, readable by its user alone; deleted rows are overwritten. Without a path
the database is a temporary one that goes with the process. A row's time begins again whenever its conversation goes on.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHAIN_BYTES = 64 << 20  # of the history that one request may continue
SWEEP_S = 60.0  # between deletions of what has expired
_PATIENCE_S = 0.5  # for another server to let go of the file
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, expires_s REAL NOT NULL, previous TEXT, running INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, items BLOB NOT NULL, response BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_expiry ON responses (expires_s);
"""
_COLUMNS = "id, previous, items, response"
_MAGIC = b"SQLite format 3\0"
_FORMAT = 1  # of the table; a file of another one is refused


class Stored(msgspec.Struct, frozen=True):
    """`items` is the JSON list of the request's own input, `response` the JSON object that was told."""

    id: str
    previous: str | None
    items: bytes
    response: bytes


class ResponseStore:
    """Sizes in bytes, times in seconds. `now` is a wall clock, since rows outlive the process."""

    def __init__(
        self,
        path: Path | None,
        *,
        keep_s: float,
        max_bytes: int,
        max_item_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._keep_s, self._now = path, keep_s, now
        self._max_bytes, self._max_item_bytes = max_bytes, max_item_bytes
        self._thread = ThreadPoolExecutor(1, "responses")
        self._db: sqlite3.Connection | None = None
        self._total = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises ValueError where the file cannot be used."""
        await self._run(self._open)
        self._sweeper = asyncio.create_task(self._sweep_often())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._run(self._close)
        self._thread.shutdown()

    async def put(self, owner: str, row: Stored, *, running: bool = False, anyway: bool = False) -> bool:
        """Keep a response, in place of one of the same id. False where all stays as it was: it is too large (`anyway` keeps
        one above max_item_bytes), or, which `fits` tells apart, the disk is full."""
        most = self._max_bytes if anyway else min(self._max_item_bytes, self._max_bytes)
        try:
            return await self._run(self._put, owner, row, running, most)
        except ApiError as error:
            sys.stderr.write(f"deepinfer: a response is not kept: {error}\n")
            return False

    def fits(self, row: Stored) -> bool:
        """Whether a response of this size is kept at all."""
        return len(row.items) + len(row.response) <= min(self._max_item_bytes, self._max_bytes)

    async def get(self, owner: str, response_id: str) -> Stored | None:
        return await self._run(self._get, owner, response_id)

    async def chain(self, owner: str, response_id: str) -> list[Stored]:
        """A response and all before it, oldest first. Raises KeyError(id) of one that is gone, ValueError if it is too much."""
        return await self._run(self._chain, owner, response_id)

    async def delete(self, owner: str, response_id: str) -> bool:
        return await self._run(self._delete, "id = ? AND owner = ?", response_id, owner) > 0

    async def sweep(self) -> int:
        """Delete what has expired; how many there were."""
        return await self._run(self._delete, "expires_s <= ?", self._now())

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """In the store's thread. Raises ApiError 503 where the database fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        except sqlite3.Error as error:
            message = f"the store of responses failed: {error} (serving.responses_path={self._path})"
            raise ApiError(503, message, code="store_failed", retry_after_s=5.0) from error

    async def _sweep_often(self) -> None:
        while True:
            await asyncio.sleep(min(self._keep_s, SWEEP_S))
            try:
                await self.sweep()
            except ApiError as error:  # the next one may work
                sys.stderr.write(f"deepinfer: expired responses are not deleted: {error}\n")

    def _open(self) -> None:
        if self._path is not None:
            _create_private(self._path)
        db = sqlite3.connect(str(self._path or ""), timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found not in (0, _FORMAT):
                raise ValueError(
                    f"serving.responses_path={self._path} is of another version ({found}): give another file"
                )
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {_FORMAT}")
            (self._total,) = db.execute("SELECT coalesce(sum(num_bytes), 0) FROM responses").fetchone()
            self._db = db
            self._end_running()
        except sqlite3.Error as error:
            db.close()
            locked = ": is another server using it?" if "locked" in str(error) else ""
            raise ValueError(f"serving.responses_path={self._path} cannot be used ({error}){locked}") from error

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _rows(self, sql: str, *args: Any) -> list[Any]:
        assert self._db is not None, "the store is open while requests are served"
        return self._db.execute(sql, args).fetchall()

    def _end_running(self) -> None:
        """What ran in the background when the server ended has failed."""
        for response_id, response in self._rows("SELECT id, response FROM responses WHERE running = 1"):
            told = msgspec.json.decode(response)
            told["status"] = "failed"
            told["error"] = {
                "code": "server_error",
                "message": "the server ended while this response was made: ask again",
            }
            self._rows(
                "UPDATE responses SET running = 0, response = ? WHERE id = ?", msgspec.json.encode(told), response_id
            )

    def _put(self, owner: str, row: Stored, running: bool, most: int) -> bool:
        size = len(row.items) + len(row.response)
        if size > most:
            return False
        before = self._total
        self._rows("BEGIN")
        try:
            self._replace(owner, row, running, size)
        except sqlite3.Error:
            self._total = before
            with suppress(sqlite3.Error):  # the first error says why
                self._rows("ROLLBACK")
            raise
        return True

    def _replace(self, owner: str, row: Stored, running: bool, size: int) -> None:
        """Within a transaction. Who writes makes room of their own first, then the oldest of others go."""
        self._delete("id = ? AND owner = ?", row.id, owner)
        while self._total + size > self._max_bytes:
            oldest = "SELECT id FROM responses ORDER BY owner != ?, expires_s, rowid LIMIT 1"
            self._delete(f"id = ({oldest})", owner)
        values = (row.id, owner, self._now() + self._keep_s, row.previous, running, size, row.items, row.response)
        self._rows("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *values)
        self._total += size
        self._rows("COMMIT")

    def _get(self, owner: str, response_id: str) -> Stored | None:
        sql = f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND owner = ? AND expires_s > ?"
        rows = self._rows(sql, response_id, owner, self._now())
        return Stored(*rows[0]) if rows else None

    def _chain(self, owner: str, response_id: str) -> list[Stored]:
        found: list[Stored] = []
        wanted: str | None = response_id
        size = 0
        while wanted is not None:
            row = self._get(owner, wanted)
            if row is None:
                raise KeyError(wanted)
            size += len(row.items) + len(row.response)
            if size > MAX_CHAIN_BYTES:
                raise ValueError(
                    f"the history of {response_id} is larger than {MAX_CHAIN_BYTES} bytes: begin a new one"
                )
            found.append(row)
            wanted = row.previous
        for row in found:
            self._rows("UPDATE responses SET expires_s = ? WHERE id = ?", self._now() + self._keep_s, row.id)
        return found[::-1]

    def _delete(self, where: str, *args: Any) -> int:
        sizes = [size for (size,) in self._rows(f"DELETE FROM responses WHERE {where} RETURNING num_bytes", *args)]
        self._total -= sum(sizes)
        if sizes:
            self._rows("PRAGMA incremental_vacuum")
        return len(sizes)


def _create_private(path: Path) -> None:
    """Make the file, readable by its user alone. Raises ValueError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        begin = os.read(file, len(_MAGIC))
        os.close(file)
    except OSError as error:
        raise ValueError(f"serving.responses_path={path} cannot be written: {error.strerror}") from error
    if begin not in (b"", _MAGIC):  # SQLite takes a file of a few bytes for an empty one
        raise ValueError(f"serving.responses_path={path} is a file of something else, not SQLite's: give another file")
