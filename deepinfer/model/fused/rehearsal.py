"""Runs of a step that no other rank takes part in: those that come before a capture, to compile kernels."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Rehearsals(threading.local):
    """How many one thread is in the midst of: ranks may be threads of one process."""

    count = 0


_rehearsals = _Rehearsals()


@contextmanager
def rehearsal() -> Iterator[None]:
    """Meanwhile this thread says nothing to other ranks; what they would have answered is made up.

    Ranks capture graphs when a size first comes to them, which is not the same step for all.
    """
    _rehearsals.count += 1
    try:
        yield
    finally:
        _rehearsals.count -= 1


def is_rehearsal() -> bool:
    return _rehearsals.count > 0
