"""Grammars compiled off the engine's thread, each content once, the newest kept.

A thread cannot be stopped from outside. A compilation that takes too long therefore only loses its requests: they end with
the reason, the thread comes back when the library's own limits end its work, and threads are daemons, so that none
holds up the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from deepinfer.sampling.grammar.backend import Compiled, GrammarBackend, GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepinfer.structured import Grammar

NUM_THREADS = 2
Result = Compiled | GrammarError


@dataclass(slots=True)
class _Order:
    """A request that waits for a content."""

    key: bytes
    started_s: float


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
        self._cache: OrderedDict[bytes, Result] = OrderedDict()
        self._cached_bytes = 0
        self._orders: dict[int, _Order] = {}
        self._working: set[bytes] = set()  # contents that a thread has, or will have
        self._todo: SimpleQueue[tuple[bytes, Grammar] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[bytes, Result]] = SimpleQueue()
        self._news = threading.Event()
        self._threads: list[threading.Thread] = []

    def order(self, request_id: int, key: bytes, grammar: Grammar) -> None:
        """Have the content `key` compiled for a request."""
        self._take_in()
        self._orders[request_id] = _Order(key, self._clock())
        if key in self._cache:
            self._news.set()
        elif key not in self._working:
            self._working.add(key)
            self._start_threads()
            self._todo.put((key, grammar))

    def finished(self) -> list[tuple[int, Result]]:
        """Requests whose grammar is there, cannot be had, or took too long; each is told once."""
        self._news.clear()
        self._take_in()
        found: list[tuple[int, Result]] = []
        now_s = self._clock()
        for request_id, order in self._orders.items():
            result = self._cache.get(order.key)
            if result is not None:
                self._cache.move_to_end(order.key)
                found.append((request_id, result))
            elif now_s - order.started_s > self._timeout_s:
                found.append((request_id, GrammarError(self._too_long())))
        for request_id, _ in found:
            del self._orders[request_id]
        self._shrink()
        return found

    def cancel(self, request_id: int) -> None:
        self._orders.pop(request_id, None)

    def wait(self, timeout_s: float) -> None:
        """Until there is something to fetch, but not longer."""
        if self._orders:
            self._news.wait(timeout_s)

    def close(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
        self._threads = []
        self._orders.clear()
        self._cache.clear()

    def _start_threads(self) -> None:
        if not self._threads:
            work = self._work
            self._threads = [
                threading.Thread(target=work, name=f"grammar-{number}", daemon=True) for number in range(NUM_THREADS)
            ]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            key, grammar = item
            try:
                result: Result = self._backend.compile(grammar)
            except GrammarError as error:
                result = error
            except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
                result = GrammarError(f"{type(error).__name__}: {error}")
            self._done.put((key, result))
            self._news.set()

    def _take_in(self) -> None:
        while not self._done.empty():
            key, result = self._done.get()
            self._working.discard(key)
            self._cache[key] = result
            self._cached_bytes += _size(result)

    def _shrink(self) -> None:
        """Forget the contents that were not asked for longest, but none that somebody waits for."""
        most, most_bytes = self._limits
        while self._cache and (len(self._cache) > most or self._cached_bytes > most_bytes):
            _, result = self._cache.popitem(last=False)
            self._cached_bytes -= _size(result)

    def _too_long(self) -> str:
        return (
            f"its grammar was not compiled within {self._timeout_s:g} s (grammar.compile_timeout_s): make it smaller, "
            "or raise the limit"
        )


def _size(result: Result) -> int:
    return 0 if isinstance(result, GrammarError) else result.size_bytes
