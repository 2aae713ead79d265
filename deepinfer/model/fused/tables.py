"""The seam between the fused model and rows of n-gram tables on other ranks.

Every rank asks each table once in every step that ranks share, with rows of its own or without, and `begin` comes before: it
says how many rows the rank has that has most of them, which all ranks agreed upon.

Legend: T rows of a step · R table rows of each · N rows of a table here · K columns of one · G groups of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Found = Callable[["Tensor"], "Tensor"]  # numbers of rows here int64 [T, R], -1: none → bfloat16 [T, R · K], none is 0


class FusedLookup(Protocol):
    """One n-gram table, wherever its rows are."""

    def __call__(self, rows_TR: Tensor) -> Tensor:
        """bfloat16 [T, R · K] of rows by their number in the whole table, int64 [T, R]; T may be 0."""

    def serve(self) -> None:
        """What the call does where this rank has no rows in the step."""


class Begun(Protocol):
    """Something on other ranks, which all of them begin a step with. Also a `FusedDispatch`."""

    @property
    def most_rows(self) -> int:
        """Of steps whose launches wait for nothing; longer ones are launched without a graph on every rank."""

    def begin(self, rows: int, live_1: Tensor | None = None) -> None:
        """See `FusedDispatch.begin`."""


class FusedTables(Begun, Protocol):
    """Makes the lookup of each n-gram table, counted in the order of their layers."""

    def table(self, number: int, found: Found, num_rows: int, rows_of_each: int) -> FusedLookup:
        """`found` reads the `num_rows` rows of it that are here; a token needs `rows_of_each`."""


class Elsewhere:
    """All that a model has on other ranks."""

    def __init__(self, parts: Sequence[Begun]) -> None:
        assert parts, "something is on other ranks"
        self._parts = parts

    @classmethod
    def of(cls, *parts: Begun | None) -> Elsewhere | None:
        """None where all of it is here."""
        there = [part for part in parts if part is not None]
        return cls(there) if there else None

    @property
    def most_rows(self) -> int:
        return min(part.most_rows for part in self._parts)

    def begin(self, rows: int, live_1: Tensor | None = None) -> None:
        for part in self._parts:
            part.begin(rows, live_1)
