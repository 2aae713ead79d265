"""Runs of a step that no other rank takes part in: those that come before a capture, to compile kernels."""

from collections.abc import Iterator
from contextlib import contextmanager

_rehearsals: list[None] = []


@contextmanager
def rehearsal() -> Iterator[None]:
    """Meanwhile nothing is said to other ranks; what they would have answered is made up.

    Ranks capture graphs when a size first comes to them, which is not the same step for all.
    """
    _rehearsals.append(None)
    try:
        yield
    finally:
        _rehearsals.pop()


def is_rehearsal() -> bool:
    return bool(_rehearsals)
