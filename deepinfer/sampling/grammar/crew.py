"""Threads that share work on independent things: the libraries of grammars compute without the interpreter's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Thing = TypeVar("Thing")
Found = TypeVar("Found")
LEAST_EACH = 2  # things of a thread, below which waking it costs more than it saves


class Crew:
    """The caller is one of its `size` threads; the others start when they are first needed."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[Thing], Found], things: Sequence[Thing]) -> list[Found]:
        """What `work` finds for each of the things, in their order."""
        shares = min(self.size, len(things) // LEAST_EACH)
        if shares < 2:
            return [work(thing) for thing in things]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.size - 1, "grammar")

        def share(number: int) -> list[Found]:
            return [work(thing) for thing in things[number::shares]]

        others = [self._pool.submit(share, number) for number in range(1, shares)]
        parts = [share(0), *(other.result() for other in others)]
        return [parts[i % shares][i // shares] for i in range(len(things))]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
