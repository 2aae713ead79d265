"""What the store of /v1/responses promises: owners apart, expiry, size, restarts."""

import asyncio
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deepinfer.serving.http import response_store
from deepinfer.serving.http.response_store import ResponseStore, Stored


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def row(name: str, previous: str | None = None, size: int = 10) -> Stored:
    return Stored(name, previous, b"[]", b'"' + b"x" * (size - 4) + b'"')


def with_store(use: Callable[[ResponseStore], Awaitable[Any]], path: Path | None = None, **options: Any) -> Any:
    async def run() -> Any:
        store = ResponseStore(path, **{"keep_s": 100.0, "max_bytes": 1000, "max_item_bytes": 500} | options)
        await store.open()
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(run())


def test_another_owner_sees_and_deletes_nothing() -> None:
    async def use(store: ResponseStore) -> None:
        await store.put("a", row("r1"))
        assert await store.get("a", "r1") == row("r1")
        assert await store.get("b", "r1") is None and not await store.delete("b", "r1")
        with pytest.raises(KeyError, match="r1"):
            await store.chain("b", "r1")
        assert await store.delete("a", "r1") and await store.get("a", "r1") is None

    with_store(use)


def test_a_chain_is_told_oldest_first_and_a_missing_link_by_name() -> None:
    async def use(store: ResponseStore) -> None:
        for name, previous in (("r1", None), ("r2", "r1"), ("r3", "r2")):
            await store.put("a", row(name, previous))
        assert [one.id for one in await store.chain("a", "r3")] == ["r1", "r2", "r3"]
        await store.delete("a", "r1")
        with pytest.raises(KeyError, match="r1"):
            await store.chain("a", "r3")

    with_store(use)


def test_rows_expire_and_continuing_a_conversation_keeps_all_of_it() -> None:
    clock = Clock()

    async def use(store: ResponseStore) -> None:
        await store.put("a", row("r1"))
        await store.put("a", row("other"))
        clock.now_s += 60
        await store.chain("a", "r1")
        clock.now_s += 60
        assert await store.get("a", "other") is None and await store.get("a", "r1") is not None
        assert await store.sweep() == 1 and await store.sweep() == 0
        clock.now_s += 60
        assert await store.sweep() == 1

    with_store(use, now=clock)


def test_the_oldest_make_room_and_what_is_too_large_is_not_kept() -> None:
    async def use(store: ResponseStore) -> None:
        for number in range(4):
            assert await store.put("a", row(f"r{number}", size=300))
        kept = [await store.get("a", f"r{number}") is not None for number in range(4)]
        assert kept == [False, True, True, True]
        assert not await store.put("a", row("big", size=501)) and await store.get("a", "big") is None
        assert await store.put("a", row("r3", size=100)) and await store.put("a", row("r4", size=300))
        assert await store.get("a", "r1") is not None, "a row that is put again counts once"

    with_store(use)


def test_a_file_outlives_the_server_and_what_was_running_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "responses.sqlite"
    with_store(lambda store: store.put("a", row("done")), path)
    running = Stored("r", None, b"[]", msgspec.json.encode({"status": "in_progress", "error": None}))
    with_store(lambda store: store.put("a", running, running=True), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    async def use(store: ResponseStore) -> None:
        assert await store.get("a", "done") == row("done")
        found = await store.get("a", "r")
        told = msgspec.json.decode(found.response) if found else {}
        assert told["status"] == "failed" and told["error"]["code"] == "server_error"

    with_store(use, path)


def test_a_full_disk_is_said_and_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    async def use(store: ResponseStore) -> None:
        await store.put("a", row("r1"))
        await store._run(store._rows, "PRAGMA query_only = ON")
        assert not await store.put("a", row("r2"))
        await store._run(store._rows, "PRAGMA query_only = OFF")
        assert await store.put("a", row("r2")) and await store.get("a", "r1") == row("r1")

    with_store(use)
    assert "a response is not kept" in capsys.readouterr().err


def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"

    async def nothing(store: ResponseStore) -> None:
        with pytest.raises(ValueError, match=r"responses_path=.*another server"):
            await asyncio.wait_for(ResponseStore(path, keep_s=1, max_bytes=1, max_item_bytes=1).open(), 20)

    with_store(nothing, path)
    path.write_bytes(b"no database, but long enough to be read as one" * 30)
    with pytest.raises(ValueError, match="not SQLite's"):
        with_store(nothing, path)
    with pytest.raises(ValueError, match="cannot be written"):
        with_store(nothing, path / "below")


def test_deleted_text_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"

    async def use(store: ResponseStore) -> None:
        await store.put("a", Stored("r1", None, b'["a secret text"]', b"{}"))
        await store.delete("a", "r1")

    with_store(use, path)
    assert b"a secret text" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())


def test_who_fills_the_store_makes_room_of_their_own() -> None:
    async def use(store: ResponseStore) -> None:
        await store.put("b", row("first", size=300))
        for number in range(6):
            assert await store.put("a", row(f"r{number}", size=300))
        assert await store.get("b", "first") is not None
        kept = [await store.get("a", f"r{number}") is not None for number in range(6)]
        assert kept == [False, False, False, False, True, True]
        assert await store.put("c", row("new", size=300)) and await store.get("b", "first") is None

    with_store(use)


def test_what_is_too_large_leaves_its_row_as_it_was_and_can_be_kept_anyway() -> None:
    async def use(store: ResponseStore) -> None:
        assert await store.put("a", row("r1"), running=True)
        assert not await store.put("a", row("r1", size=600)) and await store.get("a", "r1") == row("r1")
        assert await store.put("a", row("r1", size=600), anyway=True)
        assert not await store.put("a", row("r1", size=1001), anyway=True)
        assert await store.get("a", "r1") == row("r1", size=600)

    with_store(use)


def test_a_disk_that_fills_while_a_row_is_replaced_leaves_the_old_one() -> None:
    async def use(store: ResponseStore) -> None:
        assert await store.put("a", row("r1"))
        await store._run(
            store._rows, "CREATE TRIGGER full BEFORE INSERT ON responses BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        assert not await store.put("a", row("r1", size=20))
        await store._run(store._rows, "DROP TRIGGER full")
        assert await store.get("a", "r1") == row("r1") and store._total == 10
        assert await store.put("a", row("r2"))

    with_store(use)


def test_expiry_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(response_store, "SWEEP_S", 0.001)
    times = []

    def sometimes(store: ResponseStore, where: str, *args: Any) -> int:
        times.append(where)
        if len(times) < 3:
            raise sqlite3.DatabaseError("disk I/O error")
        return 0

    monkeypatch.setattr(ResponseStore, "_delete", sometimes)

    async def use(store: ResponseStore) -> None:
        async with asyncio.timeout(20):
            while len(times) < 5:
                await asyncio.sleep(0.001)

    with_store(use)
    assert "expired responses are not deleted" in capsys.readouterr().err


@pytest.mark.parametrize("held", [b"x", b"SQLite", b"# a short note\n"])
def test_a_short_file_of_something_else_is_refused_and_stays(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "note"
    path.write_bytes(held)
    with pytest.raises(ValueError, match="not SQLite's"):
        with_store(lambda store: store.sweep(), path)
    assert path.read_bytes() == held


def test_only_a_locked_file_is_said_to_be_anothers(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    with pytest.raises(ValueError, match="cannot be used") as refused:
        with_store(lambda store: store.sweep(), path)
    assert "another server" not in str(refused.value)


def test_a_full_disk_keeps_what_it_has_and_lets_go_of_it(tmp_path: Path) -> None:
    async def use(store: ResponseStore) -> None:
        await store.put("a", row("old", size=20_000))
        await store.put("a", row("other", size=20_000))
        (pages,) = (await store._run(store._rows, "PRAGMA page_count"))[0]
        await store._run(store._rows, f"PRAGMA max_page_count = {pages}")
        grown = row("old", size=90_000)
        assert store.fits(grown) and not await store.put("a", grown)
        assert await store.get("a", "old") == row("old", size=20_000), "the one it should replace stays"
        assert await store.delete("a", "other") and await store.put("a", row("new", size=15_000))

    with_store(use, tmp_path / "full", max_bytes=10**6, max_item_bytes=10**5)
