"""Responses that are being made: streamed, awaited or in the background; each can be looked at and cancelled."""

from __future__ import annotations

import asyncio
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.http.errors import ApiError
from deepinfer.serving.http.reading_loop import CLIENT_GONE, Read, read_answers
from deepinfer.serving.http.response_store import ResponseStore, Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from deepinfer.serving.answers import Answers, Piece
    from deepinfer.serving.responses_events import ResponsesEvents
    from deepinfer.serving.responses_request import ResponsesAsk

_PATIENCE_S = 1.0
_encode = msgspec.json.Encoder().encode


class Run:
    """One response in the making. Ends completed, incomplete, failed or cancelled, and is kept before its end is told."""

    def __init__(
        self, owner: str, ask: ResponsesAsk, events: ResponsesEvents, answers: Answers, store: ResponseStore
    ) -> None:
        self.owner, self.ask, self.events = owner, ask, events
        self.failure: ApiError | None = None
        self._answers, self._store = answers, store
        self.deleted = False  # nobody wants it kept any more
        self._cancelled = False
        self._over = asyncio.Event()

    def now(self) -> dict[str, Any]:
        """The response as it is: before its end without output."""
        return self.events.final or self.events.snapshot()

    async def told(self) -> AsyncIterator[bytes]:
        """Its events, some at a time. Raises ApiError 499 where its client has gone."""
        rest = b""
        try:
            yield self.events.begin()
            try:
                async for told in read_answers([self._answers], self._push):
                    if self.events.final is None:
                        yield told
                    else:  # told once it is kept
                        rest += told
            except ApiError as error:
                rest = self._ended(error)
            await self._keep()
            yield rest + self.events.last()
        finally:
            self._over.set()

    async def made(self) -> dict[str, Any]:
        """The whole response, when it has ended."""
        async for _ in self.told():
            pass
        assert self.events.final is not None, "a run goes on until its response has ended"
        return self.events.final

    async def cancel(self) -> dict[str, Any] | None:
        """End it within a step of the engine; the response as it was then, None where its reader went away.

        Where a slow reader still has events to take, its output is not told here.
        """
        self._cancelled = True
        self._answers.abort()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), _PATIENCE_S)
            return self.events.final
        return self.events.snapshot() | {"status": "cancelled"}

    async def forget(self) -> None:
        """End it, and keep nothing of it, however long its reader takes to notice."""
        self.deleted = True
        await self.cancel()

    def drop(self) -> None:
        """End it unseen."""
        self._answers.abort()

    async def fail(self, why: str) -> None:
        """It ends without output, and is kept as failed, however large its input is."""
        error = {"code": "server_error", "message": why}
        ended: dict[str, Any] = {
            "status": "failed",
            "error": error,
            "incomplete_details": None,
            "output": [],
            "completed_at": None,
        }
        self.events.final = self.now() | ended
        if not self.deleted:
            await self._store.put(self.owner, self.row(self.events.final), anyway=True)

    def row(self, response: dict[str, Any]) -> Stored:
        """What the store keeps of it, `response` being what is told."""
        return Stored(self.events.id, self.ask.previous_response_id, _encode(self.ask.items), _encode(response))

    def _push(self, _: int, piece: Piece) -> Read:
        return self.events.push(piece), self.events.reader.stopped

    def _ended(self, error: ApiError) -> bytes:
        """The events that close what is open."""
        if self._cancelled:
            return self.events.end("cancelled")
        if error.code == CLIENT_GONE:
            raise error
        self.failure = error
        return self.events.end("failed", {"code": _code(error), "message": error.message})

    async def _keep(self) -> None:
        final = self.events.final
        assert final is not None, "what has ended is kept"
        if not self.ask.store or self.deleted:
            return
        if await self._store.put(self.owner, self.row(final)):
            return
        if self.ask.background:
            await self.fail("it is too large to be kept (serving.responses_max_item_bytes), or the disk is full")
        else:
            final["store"] = False


def _code(failure: ApiError) -> str:
    """One of the codes that OpenAI's API has for it."""
    return "server_error" if failure.status >= 500 else "invalid_prompt"


class Runs:
    """All responses of a server that are being made, and the store of those that were."""

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self._runs: dict[str, Run] = {}
        self._background: set[asyncio.Task[None]] = set()

    def find(self, owner: str, response_id: str) -> Run | None:
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner and not run.deleted else None

    async def stream(self, run: Run) -> AsyncIterator[bytes]:
        told = run.told()
        self._runs[run.events.id] = run
        try:
            async for events in told:
                yield events
        finally:
            self._runs.pop(run.events.id, None)
            await told.aclose()  # type: ignore[attr-defined]

    async def whole(self, run: Run) -> dict[str, Any]:
        """The response. Raises ApiError where the engine failed."""
        made = await self._made(run)
        if run.failure is not None:
            raise run.failure
        return made

    async def in_background(self, run: Run) -> dict[str, Any]:
        """Start making it, and the response as it is now. A server that ends meanwhile leaves it as failed."""
        snapshot = run.events.snapshot()
        row, kept = run.row(snapshot), False
        try:
            kept = await self.store.put(run.owner, row, running=True)
        finally:
            if not kept:
                run.drop()
        if not kept and self.store.fits(row):
            why = "the response cannot be kept now: the store of responses failed, its disk may be full"
            raise ApiError(503, f"{why}: ask without background", code="store_failed", retry_after_s=5.0)
        if not kept:
            why = "input this large is not kept (serving.responses_max_item_bytes), so that nobody could fetch the response"
            raise ApiError(413, f"{why}: ask without background", param="background")
        self._runs[run.events.id] = run
        task = asyncio.create_task(self._aside(run))
        self._background.add(task)
        task.add_done_callback(self._is_done)
        return snapshot

    async def _aside(self, run: Run) -> None:
        """Make a response that nobody waits for: whatever breaks, it does not stay in progress."""
        whole = False
        try:
            await self._made(run)
            whole = True
        finally:
            if not whole:
                run.drop()
                await run.fail("this is a fault of the server; its log has the details")

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.stderr.write("".join(traceback.format_exception(error)))

    async def close(self) -> None:
        """Wait for what runs in the background, whose answers have been ended by now; then close the store."""
        if self._background:
            await asyncio.wait(self._background)
        await self.store.close()

    async def _made(self, run: Run) -> dict[str, Any]:
        self._runs[run.events.id] = run
        try:
            return await run.made()
        finally:
            self._runs.pop(run.events.id, None)
