"""Who answers in a chat: the model in this process, or a server that speaks Chat Completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from deepinfer.cli.bench_http import Client, Events

if TYPE_CHECKING:
    from deepinfer.api import LLM

Messages = list[dict[str, Any]]
OnNews = Callable[[str, str], None]  # what is new in (content, thinking)
PATH = "/v1/chat/completions"


class AnswerFailed(Exception):
    """There is no answer, and why."""


class Backend(Protocol):
    def answer(self, messages: Messages, on_news: OnNews, *, thinking: bool) -> None:
        """Say the answer to a conversation while it grows. Raises AnswerFailed; Ctrl-C ends the answer where it is."""

    def close(self) -> None: ...


class Here:
    """The model in this process."""

    def __init__(self, llm: LLM, on_notice: Callable[[str], None]) -> None:
        self._llm, self._on_notice = llm, on_notice

    def answer(self, messages: Messages, on_news: OnNews, *, thinking: bool) -> None:
        llm = self._llm
        job = llm.desk.chat(messages, llm.default_params, thinking=thinking, asked=llm.asked)
        for notice in job.chat.notices if job.chat else ():
            self._on_notice(notice)
        events = llm.stream_job(job)
        try:
            for event in events:
                if event.error is not None:
                    raise AnswerFailed(event.error)
                if event.index == 0:
                    on_news(event.text, event.reasoning or "")
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()  # a request that nobody listens to is aborted

    def close(self) -> None:
        self._llm.close()


class There:
    """A server."""

    def __init__(self, base_url: str, *, api_key: str = "") -> None:
        self._base_url, self._api_key = base_url, api_key
        Client(base_url)  # raises ValueError for what is no address
        self._model = ""

    def answer(self, messages: Messages, on_news: OnNews, *, thinking: bool) -> None:
        try:
            asyncio.run(self._answer(messages, on_news, thinking))
        except (OSError, msgspec.MsgspecError) as error:
            raise AnswerFailed(f"{self._base_url}: {error}") from error

    async def _answer(self, messages: Messages, on_news: OnNews, thinking: bool) -> None:
        client = Client(self._base_url, api_key=self._api_key)
        events, failures = Events(), list[str]()

        def take(data: bytes) -> None:
            for payload in events.push(data):
                if payload == b"[DONE]":
                    continue
                chunk = msgspec.json.decode(payload)
                if "error" in chunk:
                    failures.append(_message(chunk))
                for choice in chunk.get("choices", ()):
                    delta = choice.get("delta") or {}
                    on_news(delta.get("content") or "", delta.get("reasoning_content") or "")

        try:
            self._model = self._model or await self._first_model(client)
            body = {"model": self._model, "messages": messages, "stream": True}
            body["thinking"] = {"type": "enabled" if thinking else "disabled"}
            reply = await client.post(PATH, msgspec.json.encode(body), take)
        finally:
            client.close()
        if reply.status != 200:
            raise AnswerFailed(f"HTTP {reply.status}: {_message_of(reply.body)}")
        if failures:
            raise AnswerFailed(failures[0])

    async def _first_model(self, client: Client) -> str:
        reply = await client.get("/v1/models")
        if reply.status != 200:
            raise AnswerFailed(f"HTTP {reply.status}: {_message_of(reply.body)}")
        return str(msgspec.json.decode(reply.body)["data"][0]["id"])

    def close(self) -> None:
        """Nothing is held between answers."""


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or body)


def _message_of(body: bytes) -> str:
    try:
        return _message(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        return body[:200].decode(errors="replace")
