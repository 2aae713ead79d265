"""What every dialect needs of the server: the engine's line, limits, keys, salts, bodies and streams."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from deepinfer.serving.engine_line import EngineLine, NotServing
from deepinfer.serving.engine_thread import Tell
from deepinfer.serving.http.admission import Admission, client_gone
from deepinfer.serving.http.auth import Key, Keys
from deepinfer.serving.http.errors import ApiError
from deepinfer.serving.http.hooks import Metrics, NoMetrics
from deepinfer.serving.http.refusals import unavailable
from deepinfer.serving.http.sse import EventStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from deepinfer.config.serving import Serving
    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.tokenizer import BpeTokenizer
    from deepinfer.serving.answers import Answers
    from deepinfer.serving.jobs import Desk, Job
    from deepinfer.serving.served import Served

T = TypeVar("T")
INLINE_BYTES = 16_384  # a body up to this size is worked on at once; a larger one by a thread beside the loop
_ENCODE = msgspec.json.Encoder(enc_hook=str).encode


class Service:
    """One server. `start(tell)` builds the engine; `plan_json` is what /v1/plan shows; `model_names` are accepted, the first
    is told back. `keys` None: whoever reaches the port may ask."""

    def __init__(
        self,
        settings: Serving,
        start: Callable[[Tell], Served],
        *,
        model_names: Sequence[str],
        plan_json: bytes = b"{}",
        keys: Keys | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings, self.plan_json, self.keys = settings, plan_json, keys
        self.model_names = tuple(model_names)
        self.metrics: Metrics = metrics or NoMetrics()
        self.line = EngineLine(start, max_waiting=settings.max_waiting)
        self.line.on_step = lambda num_tokens, intervals_s: self.metrics.step(num_tokens, intervals_s)
        self.admission = Admission(self)
        self.held_bytes = 0  # of bodies, until their requests are over
        self.on_start: list[Callable[[], Any]] = []  # run before the first request, sync or async
        self.on_http: list[Callable[[Scope, int, float], None]] = []  # (scope, status, seconds) of every HTTP request
        self.on_close: list[Callable[[], Any]] = []  # run once no request is in flight any more
        self.started_s = time.time()
        self._pool = ThreadPoolExecutor(settings.worker_threads, thread_name_prefix="render")

    # --- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the engine; requests are refused with 503 until it is ready."""
        for hook in self.on_start:
            await _called(hook)
        self.line.open()

    async def ready(self) -> None:
        """Wait until the engine is ready. Raises NotServing where it will never be."""
        while self.line.state == "starting":
            await asyncio.sleep(0.01)
        self.line.check(0)

    async def drain(self, within_s: float) -> bool:
        """Refuse new requests, wait for those in flight, end them at the deadline. Whether all ended by themselves."""
        self.line.drain()
        deadline_s = time.monotonic() + within_s
        while self.admission.num_open and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        if not self.admission.num_open:
            return True
        why = f"the server was told to stop, and this answer was not through within serving.drain_s={within_s:g} s"
        self.line.end_all(why, "shutting_down")
        return False

    async def close(self) -> None:
        """End the engine, then whatever else was opened."""
        await self.line.close()
        for hook in self.on_close:
            await _called(hook)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- what is served --------------------------------------------------------------------------------------------

    @property
    def served(self) -> Served:
        """Raises ApiError 503 until the engine has been built."""
        if self.line.served is None:
            self._check()
            raise ApiError(503, "the engine is starting", code="starting", retry_after_s=2.0)
        return self.line.served

    @property
    def desk(self) -> Desk:
        return self.served.desk

    @property
    def tokenizer(self) -> BpeTokenizer | None:
        return self.served.desk.tokenizer

    @property
    def default_params(self) -> SamplingParams:
        return self.served.defaults

    @property
    def asked(self) -> frozenset[str]:
        return self.served.asked

    @property
    def vocab_size(self) -> int:
        return int(self.served.engine.limits.vocab_size)

    @property
    def max_model_len(self) -> int:
        return int(self.served.engine.limits.max_model_len)

    @property
    def max_prompt_tokens(self) -> int:
        most = self.settings.max_prompt_tokens
        return self.max_model_len if most == "auto" else min(most, self.max_model_len)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple(self.served.engine.limits.eos_token_ids)

    def model(self, asked: object = None) -> str:
        """The name that is told back, the one that was asked for. Raises ApiError 404 for a model that is not served; None asks
        for the one that is."""
        if asked is None:
            return self.model_names[0]
        if not isinstance(asked, str):
            raise ApiError(400, f"model is {asked!r:.80}, and must be a text", param="model")
        if asked in self.model_names:
            return asked
        known = ", ".join(self.model_names)
        message = f"the model {asked!r:.200} does not exist here: this server has {known}"
        raise ApiError(404, message, param="model", code="model_not_found")

    # --- one request -----------------------------------------------------------------------------------------------

    def key(self, request: Request) -> Key | None:
        return getattr(request.state, "key", None)

    def key_id(self, request: Request) -> str:
        """Who asks, "" where no keys are needed."""
        key = self.key(request)
        return "" if key is None else key.id

    async def body(self, request: Request) -> bytes:
        """The JSON text of a request, whole. Raises ApiError 415 for another type, 413 and 408 for its size and its time."""
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(415, f"Content-Type is {kind!r:.80}: this path reads application/json")
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise ApiError(415, f"Content-Encoding is {encoding!r:.80}: send the body as it is")
        try:
            data = await request.body()
        except ClientDisconnect as error:
            request.scope["state"].setdefault("ended", "client_gone")
            raise ApiError(499, "the client has gone", code="client_gone") from error
        if not data.strip():
            raise ApiError(400, "the body is empty: this path reads a JSON object")
        return data

    async def work(self, size: int, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """`function(*arguments)`, beside the loop where `size` bytes are many."""
        if size <= INLINE_BYTES:
            return function(*arguments, **options)
        call = (lambda: function(*arguments, **options)) if options else function
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *(() if options else arguments))

    async def ask(
        self, request: Request, job: Job, *, dialect: str, stream: bool, salt: str = "", priority: int = 0
    ) -> Answers:
        """Hand a job to the engine. Raises ApiError for whatever stands against it: see `admission`."""
        try:
            return await self.admission.ask(request, job, dialect=dialect, stream=stream, salt=salt, priority=priority)
        except ApiError as error:
            request.scope.setdefault("state", {})["refused"] = True  # counted here, and not once more by its status
            self.metrics.request_refused(dialect, error.status, error.code or "")
            raise

    def stream(
        self,
        request: Request,
        answers: Answers | Sequence[Answers],
        chunks: AsyncIterator[bytes],
        headers: dict[str, str] | None = None,
    ) -> Response:
        """The response that sends `chunks`, each of whole events."""
        return EventStream(chunks, _listed(answers), headers, ping_s=self.settings.ping_s)

    async def whole(self, request: Request, answers: Answers | Sequence[Answers], reading: Coroutine[Any, Any, T]) -> T:
        """What `reading` gives. The answers are aborted when the client goes, or it raises."""
        watcher = asyncio.ensure_future(_abort_when_gone(request, _listed(answers)))
        try:
            return await reading
        finally:
            watcher.cancel()
            for each in _listed(answers):
                each.abort()

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        """A response of `value` as JSON; bytes are sent as they are."""
        data = value if isinstance(value, bytes) else _ENCODE(value)
        return Response(data, status, headers, "application/json")

    def _check(self) -> None:
        try:
            self.line.check(0)
        except NotServing as error:
            raise unavailable(error) from error


def _listed(answers: Answers | Sequence[Answers]) -> Sequence[Answers]:
    return answers if isinstance(answers, list | tuple) else [answers]  # type: ignore[list-item]


async def _abort_when_gone(request: Request, answers: Sequence[Answers]) -> None:
    await client_gone(request)
    for each in answers:
        each.abort()


async def _called(hook: Callable[[], Any]) -> None:
    result = hook()
    if inspect.isawaitable(result):
        await result
