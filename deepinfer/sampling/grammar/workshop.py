"""Grammars compiled off the engine's thread, each content once, the newest kept; each answer's matchers made there too.

A thread cannot be stopped from outside. A compilation that takes too long therefore only loses its requests: they end with
the reason, another thread takes the place of the one that works on, and threads are daemons, so that none holds up the end of
the process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.sampling.grammar.backend import Compiled, GrammarBackend, GrammarError
from deepinfer.structured import AnyGrammar

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_THREADS = 2
MAX_LATE_THREADS = 6  # beyond these, nobody takes the place of a thread that is late
Result = Any  # what `make` makes, or a GrammarError


@dataclass(slots=True)
class _Order:
    """What a request waits for: its content `key` compiled, then what `make` makes of it for its answer."""

    request_id: int
    key: bytes
    make: Callable[[Compiled], Any]
    ordered_s: float


@dataclass(slots=True)
class _Job:
    """For a thread: compile `key`, or make what `order` asks of `compiled`."""

    key: bytes
    order: _Order | None = None
    compiled: Compiled | None = None
    started_s: float | None = None  # once a thread has taken it


class Workshop:
    """Results are fetched by request. Only the engine's thread calls its methods."""

    def __init__(
        self,
        backend: GrammarBackend,
        *,
        timeout_s: float,
        max_cached: int,
        max_cached_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._timeout_s = timeout_s
        self._limits = (max_cached, max_cached_bytes)
        self._clock = clock
        self._cache: OrderedDict[bytes, Compiled | GrammarError] = OrderedDict()
        self._cached_bytes = 0
        self._orders: dict[int, _Order] = {}
        self._compiling: dict[bytes, _Job] = {}
        self._making: dict[int, _Job] = {}
        self._jobs: dict[int, _Job] = {}  # by id(): handed to the threads, and not back
        self._late: dict[int, bool] = {}  # by id(), jobs that are late; whether another thread took their place
        self._made: list[tuple[_Order, Result]] = []
        self._todo: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[_Job, Any]] = SimpleQueue()
        self._news = threading.Event()
        self._num_threads = 0

    def order(self, request_id: int, key: bytes, make: Callable[[Compiled], Any]) -> None:
        """Have the content `key`, a grammar as JSON, compiled for a request, and its own part made of it."""
        self._take_in()
        order = _Order(request_id, key, make, self._clock())
        self._orders[request_id] = order
        if key in self._cache:
            self._cache.move_to_end(key)
            self._serve(order, self._cache[key])
            self._news.set()
        elif key not in self._compiling:
            self._compiling[key] = _Job(key)
            self._put(self._compiling[key])

    def finished(self) -> list[tuple[int, Result]]:
        """Requests whose part is made, cannot be had, or took too long; each is told once."""
        self._news.clear()
        self._take_in()
        found, self._made = self._made, []
        told = [(order.request_id, result) for order, result in found if self._is_awaited(order)]
        told += self._overdue({request_id for request_id, _ in told})
        for request_id, _ in told:
            del self._orders[request_id]
            self._making.pop(request_id, None)
        self._shrink()
        return told

    def cancel(self, request_id: int) -> None:
        self._orders.pop(request_id, None)
        self._making.pop(request_id, None)

    def wait(self, timeout_s: float) -> None:
        """Until there is something to fetch, but not longer."""
        if self._orders:
            self._news.wait(timeout_s)

    def close(self) -> None:
        for _ in range(self._num_threads):
            self._todo.put(None)
        self._num_threads = 0
        for waiting in (self._orders, self._cache, self._compiling, self._making, self._jobs, self._late):
            waiting.clear()

    def _put(self, job: _Job) -> None:
        while self._num_threads < NUM_THREADS:
            self._start_thread()
        self._jobs[id(job)] = job
        self._todo.put(job)

    def _start_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._work, name=f"grammar-{self._num_threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._todo.get()) is not None:
            job.started_s = self._clock()
            try:
                result = self._result(job)
            except GrammarError as error:
                result = error
            except BaseException as error:  # noqa: BLE001  # the outermost loop: this ends its requests alone
                result = GrammarError(f"it cannot be compiled: {type(error).__name__}: {error}")
            self._done.put((job, result))
            self._news.set()

    def _result(self, job: _Job) -> Any:
        if job.order is None:
            return self._backend.compile(msgspec.json.decode(job.key, type=AnyGrammar))
        assert job.compiled is not None
        return job.order.make(job.compiled)

    def _take_in(self) -> None:
        while not self._done.empty():
            job, result = self._done.get()
            self._jobs.pop(id(job), None)
            if self._late.pop(id(job), False):  # its thread is back, and one of them is too many
                self._num_threads -= 1
                self._todo.put(None)
            if job.order is not None:
                self._made.append((job.order, result))
                continue
            self._compiling.pop(job.key, None)
            self._cache[job.key] = result
            self._cached_bytes += _size(result)
            for order in list(self._orders.values()):
                if order.key == job.key:
                    self._serve(order, result)

    def _serve(self, order: _Order, compiled: Compiled | GrammarError) -> None:
        if isinstance(compiled, GrammarError):
            self._made.append((order, compiled))
        else:
            job = _Job(order.key, order, compiled)
            self._making[order.request_id] = job
            self._put(job)

    def _is_awaited(self, order: _Order) -> bool:
        return self._orders.get(order.request_id) is order

    def _overdue(self, told: set[int]) -> list[tuple[int, Result]]:
        """Requests whose job has run for too long, or for whom no thread is left."""
        now_s, found = self._clock(), []
        self._replace_late_threads(now_s)
        all_late = len(self._late) >= NUM_THREADS + MAX_LATE_THREADS
        for order in self._orders.values():
            job = self._making.get(order.request_id) or self._compiling.get(order.key)
            if job is None or order.request_id in told:
                continue
            if job.started_s is not None and now_s - job.started_s > self._timeout_s:
                found.append((order.request_id, GrammarError(self._too_long())))
            elif job.started_s is None and all_late and now_s - order.ordered_s > self._timeout_s:
                found.append((order.request_id, GrammarError(self._no_thread())))
        return found

    def _replace_late_threads(self, now_s: float) -> None:
        for job in self._jobs.values():
            started_s = job.started_s
            if started_s is None or now_s - started_s <= self._timeout_s or id(job) in self._late:
                continue
            self._late[id(job)] = sum(self._late.values()) < MAX_LATE_THREADS
            if self._late[id(job)]:
                self._start_thread()

    def _shrink(self) -> None:
        """Forget the contents that were not asked for longest."""
        most, most_bytes = self._limits
        while self._cache and (len(self._cache) > most or self._cached_bytes > most_bytes):
            _, result = self._cache.popitem(last=False)
            self._cached_bytes -= _size(result)

    def _too_long(self) -> str:
        return (
            f"its grammar was not compiled within {self._timeout_s:g} s (grammar.compile_timeout_s): make it smaller, "
            "or raise the limit"
        )

    def _no_thread(self) -> str:
        return (
            f"no compiler was free within {self._timeout_s:g} s (grammar.compile_timeout_s): {len(self._late)} grammars "
            "of other requests take longer than that; send it again later"
        )


def _size(result: Compiled | GrammarError) -> int:
    return 0 if isinstance(result, GrammarError) else result.size_bytes
