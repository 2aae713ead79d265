"""Reads the answers to one request until all have ended: the one loop of all dialects, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from deepinfer.serving.http.errors import ApiError, of_piece

if TYPE_CHECKING:
    from deepinfer.serving.answers import Answers, Piece

CLIENT_GONE = "client_gone"
Read = tuple[bytes, bool]  # what the client is told, and whether the answer ended there (a stop string was met)
Push = Callable[[int, "Piece"], Read | Awaitable[Read]]


async def read_answers(answers: Sequence[Answers], push: Push) -> AsyncIterator[bytes]:
    """What `push(number of the answers, piece)` tells of all pieces, joined where several came at once.

    An answer that failed raises its ApiError, and one that was aborted (the client has gone) a 499, once what came before is
    told. `push` sees no such end; what an answer's end makes of it is for whoever catches the error.
    """
    async with aclosing(_news(answers)) as all_news:
        async for news in all_news:
            told, failure = [], None
            for number, piece in news:
                failed = piece.finish_reason in ("error", "abort")
                stopped = False
                if piece.token_ids or not failed:
                    shown = msgspec.structs.replace(piece, finish_reason=None, error=None) if failed else piece
                    read = push(number, shown)
                    more, stopped = read if isinstance(read, tuple) else await read
                    told.append(more)
                if stopped:
                    answers[number].finish(piece.index)
                elif failed and failure is None:
                    failure = ended_early(piece)
            if joined := b"".join(told):
                yield joined
            if failure is not None:
                raise failure


async def read_all(answers: Sequence[Answers], push: Push) -> None:
    """As `read_answers`, of answers that are told when all have ended."""
    async for _ in read_answers(answers, push):
        pass


def ended_early(piece: Piece) -> ApiError:
    """Why an answer is not whole."""
    if piece.finish_reason == "abort":
        return ApiError(499, "the client went before its answer was whole", code=CLIENT_GONE)
    return of_piece(piece)


async def _news(answers: Sequence[Answers]) -> AsyncGenerator[list[tuple[int, Piece]], None]:
    """(number of the answers, piece) of whatever has come, until all have ended."""
    if len(answers) == 1:
        while pieces := await answers[0].next():
            yield [(0, piece) for piece in pieces]
        return
    waiting = {asyncio.ensure_future(each.next()): number for number, each in enumerate(answers)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            news = []
            for task in done:
                number = waiting.pop(task)
                pieces = task.result()
                news += [(number, piece) for piece in pieces]
                if pieces:
                    waiting[asyncio.ensure_future(answers[number].next())] = number
            if news:
                yield news
    finally:
        for task in waiting:
            task.cancel()
