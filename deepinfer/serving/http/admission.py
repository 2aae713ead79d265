"""Whether a request may run: what a key may, what the server has room for, and how large it is. One place for all dialects."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from deepinfer.serving.engine_line import NotServing, QueueFull
from deepinfer.serving.http.errors import ApiError
from deepinfer.serving.http.refusals import busy, later, unavailable
from deepinfer.serving.jobs import check_salt

if TYPE_CHECKING:
    from starlette.requests import Request

    from deepinfer.interfaces import SamplingParams
    from deepinfer.serving.answers import Answers
    from deepinfer.serving.http.auth import Key
    from deepinfer.serving.http.service import Service
    from deepinfer.serving.jobs import Job


class Admitted:
    """One HTTP request of one or several jobs, each with answers of its own."""

    def __init__(self, key: Key | None) -> None:
        self.key = key
        self.num_jobs = self.num_running = 0


class Admission:
    """Lets requests in and counts them until all their answers have ended."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.num_open = 0  # requests

    async def ask(self, request: Request, job: Job, *, dialect: str, stream: bool, salt: str, priority: int) -> Answers:
        """Raises ApiError: 400 for what can never run, 429 with Retry-After for what may later, 503 where nothing runs.

        Further jobs of an HTTP request that was let in (the prompts of a completion) come with it: none is held against it.
        """
        service, key, state = self._service, self._service.key(request), request.scope["state"]
        service._check()
        self._check_size(job)
        admitted: Admitted = state.get("admitted") or Admitted(key)
        if not admitted.num_jobs:
            self._check_room(job, key, priority)
        params, notice = cut(job.params, key)
        if notice:
            state["key_notice"] = notice
        job = msgspec.structs.replace(job, cache_salt=salted(key, salt or job.cache_salt), params=params)
        self._enter(job, admitted)
        try:
            answers = await self._handed_over(request, job, priority, admitted.num_jobs > 1)
        except BaseException as error:
            self._give_back(job, admitted)
            if isinstance(error, NotServing):
                raise unavailable(error) from error
            if isinstance(error, QueueFull):
                raise busy(error) from error
            if isinstance(error, ValueError):
                raise ApiError(400, str(error)) from error
            raise
        service.metrics.request_started(dialect, stream)
        state["admitted"] = admitted
        state.setdefault("answers", []).append(answers)
        state.update(dialect=dialect, stream=stream)
        answers.on_first = lambda begun: service.metrics.first_token(dialect, begun)
        answers.on_end = lambda ended: self._ended(ended, dialect, admitted)
        if answers.timings.first_token_ms is not None:  # it came while this task waited for its turn
            answers.on_first(answers)
        if answers.ended:
            self._ended(answers, dialect, admitted)
        return answers

    def charge(self, key: Key) -> None:
        """Count a request that needs no engine. Raises ApiError 429."""
        self._check_requests(key)
        if key.usage.requests is not None:
            key.usage.requests.take(1)

    async def _handed_over(self, request: Request, job: Job, priority: int, queue_checked: bool) -> Answers:
        """The engine may take long to take a job, while it starts again: a client that goes meanwhile asks no more."""
        line = self._service.line
        asking = asyncio.ensure_future(line.ask(job, priority=priority, queue_checked=queue_checked))
        leaving = asyncio.ensure_future(client_gone(request))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ApiError(499, "the client has gone", code="client_gone")
            return asking.result()
        except asyncio.CancelledError:
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                asking.result().abort()
            raise
        finally:
            leaving.cancel()
            asking.cancel()

    def _check_room(self, job: Job, key: Key | None, priority: int) -> None:
        most = self._service.settings.max_streams
        if key is not None:
            self._check_key(job, key, priority)
        if self.num_open >= most:
            message = f"{self.num_open} requests run already, and {most} may (serving.max_streams)"
            raise ApiError(429, message, code="too_many_streams", retry_after_s=1.0)

    def _check_size(self, job: Job) -> None:
        service, settings = self._service, self._service.settings
        if job.error:
            raise ApiError(400, job.error)
        if len(job.prompt_ids) > service.max_prompt_tokens:
            message = f"the prompt has {len(job.prompt_ids):,} tokens, and {service.max_prompt_tokens:,} may be asked"
            raise ApiError(400, message, code="context_length_exceeded")
        if job.params.n > settings.max_answers:
            raise ApiError(
                400, f"n={job.params.n}, and {settings.max_answers} may be asked (serving.max_answers)", param="n"
            )
        if job.params.grammar is not None:
            size = len(msgspec.json.encode(job.params.grammar))
            if size > settings.max_grammar_bytes:
                most = settings.max_grammar_bytes
                message = f"the grammar has {size:,} bytes, and {most:,} may be asked (serving.max_grammar_bytes)"
                raise ApiError(400, message, code="grammar_too_large")

    def _check_key(self, job: Job, key: Key, priority: int) -> None:
        usage, limits = key.usage, key.usage.limits
        if priority > limits.max_priority:
            message = f"priority={priority}, and this API key may ask up to {limits.max_priority} (its max_priority)"
            raise ApiError(403, message, param="priority", code="key_priority")
        if limits.max_streams is not None and usage.num_open >= limits.max_streams:
            message = f"{usage.num_open} requests of this API key run already, and {limits.max_streams} may"
            raise later(message, "key_streams", 1.0)
        self._check_requests(key)
        if usage.tokens is not None and (wait_s := usage.tokens.missing_s(len(job.prompt_ids))) > 0:
            message = f"this API key may use {limits.tokens_per_min:,} tokens a minute, those of prompts and answers"
            raise later(message, "key_tokens_per_min", wait_s)

    def _check_requests(self, key: Key) -> None:
        usage = key.usage
        if usage.requests is not None and (wait_s := usage.requests.missing_s(1)) > 0:
            message = f"this API key may ask {usage.limits.requests_per_min} times a minute"
            raise later(message, "key_requests_per_min", wait_s)

    def _enter(self, job: Job, admitted: Admitted) -> None:
        key = admitted.key
        admitted.num_jobs += 1
        admitted.num_running += 1
        if admitted.num_running == 1:
            self.num_open += 1
        if key is None:
            return
        if admitted.num_running == 1:
            key.usage.num_open += 1
        if key.usage.requests is not None and admitted.num_jobs == 1:
            key.usage.requests.take(1)
        if key.usage.tokens is not None:
            key.usage.tokens.take(len(job.prompt_ids))

    def _leave(self, admitted: Admitted) -> None:
        admitted.num_running -= 1
        if admitted.num_running == 0:
            self.num_open -= 1
            if admitted.key is not None:
                admitted.key.usage.num_open -= 1

    def _give_back(self, job: Job, admitted: Admitted) -> None:
        """Nothing came of a job."""
        self._leave(admitted)
        admitted.num_jobs -= 1
        key = admitted.key
        if key is not None and key.usage.requests is not None and not admitted.num_jobs:
            key.usage.requests.give_back(1)
        if key is not None and key.usage.tokens is not None:
            key.usage.tokens.give_back(len(job.prompt_ids))

    def _ended(self, answers: Answers, dialect: str, admitted: Admitted) -> None:
        self._leave(admitted)
        key = admitted.key
        if key is not None and key.usage.tokens is not None:
            key.usage.tokens.take(answers.num_tokens)
        seconds = time.monotonic() - answers.started_s
        answers.timings.total_ms = seconds * 1e3
        self._service.metrics.finished(dialect, answers, seconds)


async def client_gone(request: Request) -> None:
    """Wait until the client goes. The body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.scope["state"].setdefault("ended", "client_gone")


def cut(params: SamplingParams, key: Key | None) -> tuple[SamplingParams, str]:
    """Answers are as long as a key may have them, and a sentence where they are shorter for it."""
    most = key.usage.limits.max_tokens if key is not None else None
    if most is None or params.max_tokens <= most:
        return params, ""
    notice = f"answers end after {most:,} tokens: this API key may have no more (its max_tokens)"
    return msgspec.structs.replace(params, max_tokens=most), notice


def salted(key: Key | None, salt: str) -> str:
    """The salt under which prefixes are shared: within one key, and of it within one salt of the client's own."""
    try:
        check_salt(salt)
    except ValueError as error:
        raise ApiError(400, str(error), param="cache_salt") from error
    return salt if key is None else f"{key.id}\n{salt}"  # no id holds a line break
