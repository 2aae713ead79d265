"""A load on a server: conversations that begin by a clock or as places get free, and when each piece of each answer came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from deepinfer.cli.bench_http import Client, Events
from deepinfer.engine.load import TimedRequest

if TYPE_CHECKING:
    from deepinfer.cli.bench_talks import Talk, Turn

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class _Choice(Struct):
    text: str = ""
    token_ids: list[int] | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Cached(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(_Chunk)


class Served(Struct):
    """One request, as its client saw it."""

    timed: TimedRequest
    prompt_tokens: int = 0  # as the server counts
    cached_tokens: int = 0
    token_ids: list[int] = []  # where the server tells them
    text: str = ""
    finish_reason: str = ""
    ended_s: float = 0.0


class Answering(Struct):
    """Takes the stream of one answer apart while it comes."""

    served: Served
    clock: Callable[[], float] = time.perf_counter
    events: Events = msgspec.field(default_factory=Events)
    done: bool = False
    parts: list[str] = msgspec.field(default_factory=list)

    def push(self, data: bytes) -> None:
        now_s, timed = self.clock(), self.served.timed
        for payload in self.events.push(data):
            if payload == b"[DONE]":
                self.done = True
                continue
            chunk = _DECODER.decode(payload)
            if chunk.error is not None:
                timed.error = str(chunk.error.get("message", chunk.error))
            if chunk.usage is not None:
                self._count(chunk.usage)
            for choice in chunk.choices:
                self._take(choice, now_s)

    def _take(self, choice: _Choice, now_s: float) -> None:
        served, timed = self.served, self.served.timed
        delta = choice.delta or {}
        text = choice.text or delta.get("content") or delta.get("reasoning_content") or ""
        ids = choice.token_ids or ()
        if text or ids or delta.get("tool_calls"):
            timed.token_s.append(now_s)
        self.parts.append(text)
        served.token_ids.extend(ids)
        timed.num_tokens += len(ids)
        served.finish_reason = choice.finish_reason or served.finish_reason

    def _count(self, usage: _Usage) -> None:
        self.served.prompt_tokens = usage.prompt_tokens
        self.served.timed.num_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.served.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


class Driver:
    """Sends conversations to one model of one server. `fields` go into every body."""

    def __init__(
        self, client: Client, model: str, fields: dict[str, Any], *, on_end: Callable[[Served], None] = lambda _: None
    ) -> None:
        self.client, self.model, self.on_end = client, model, on_end
        self.served: list[Served] = []  # in the order in which they were sent
        self._fields = {"stream": True, "stream_options": {"include_usage": True}} | fields

    async def run(self, talks: Sequence[Talk], concurrency: int | None) -> float:
        """All of them, at most `concurrency` at once; the seconds it took. A talk with a `due_s` waits from then on, also
        while all places are taken: a server that falls behind cannot hide it."""
        places = asyncio.Semaphore(concurrency or len(talks))
        start_s = time.perf_counter()

        async def one(talk: Talk) -> None:
            if talk.due_s is not None:
                await asyncio.sleep(max(0.0, start_s + talk.due_s - time.perf_counter()))
            async with places:
                await self._talk(talk, None if talk.due_s is None else start_s + talk.due_s)

        async with asyncio.TaskGroup() as group:
            for talk in talks:
                group.create_task(one(talk))
        return time.perf_counter() - start_s

    async def _talk(self, talk: Talk, due_s: float | None) -> None:
        said: list[int] = []
        for number, turn in enumerate(talk.turns):
            if isinstance(turn.new, list) and turn.new and isinstance(turn.new[0], int):
                said = [*said, *turn.new]
            served = Served(TimedRequest(np.array(said, dtype=np.int64)))
            served.timed.started_s = due_s if number == 0 and due_s is not None else time.perf_counter()
            self.served.append(served)
            await self._ask(turn, said, served)
            if served.timed.error is None and number + 1 < len(talk.turns) and not served.token_ids:
                served.timed.error = "the server told no token_ids, and the next turn needs them"
            self.on_end(served)
            if served.timed.error is not None:
                return
            said = said + served.token_ids

    async def _ask(self, turn: Turn, said: list[int], served: Served) -> None:
        is_chat = isinstance(turn.new, list) and bool(turn.new) and isinstance(turn.new[0], dict)
        body = self._fields | {"model": self.model, "max_tokens": turn.output_tokens}
        body["messages" if is_chat else "prompt"] = said or turn.new
        answering = Answering(served)
        try:
            reply = await self.client.post(CHAT if is_chat else COMPLETIONS, msgspec.json.encode(body), answering.push)
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            served.timed.error = f"{type(error).__name__}: {error}"
        else:
            if reply.status != 200:
                served.timed.error = f"HTTP {reply.status}: {reply.body[:300].decode(errors='replace')}"
            elif served.timed.error is None and not (answering.done and served.timed.token_s):
                served.timed.error = "the stream ended before its [DONE]" if not answering.done else "no token came"
        served.text, served.ended_s = "".join(answering.parts), time.perf_counter()
