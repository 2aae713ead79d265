"""Launches beside other launches: a second stream for what a step's few rows would not fill the device with alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

MOST_ROWS = 384  # more of them were not measured
_most_rows = [MOST_ROWS]  # the last number holds


@contextmanager
def one_by_one() -> Iterator[None]:
    """Meanwhile there is no branch, as whoever times single operations wants it."""
    _most_rows.append(0)
    try:
        yield
    finally:
        _most_rows.pop()


@contextmanager
def beside(x_TD: Tensor, wanted: bool = True) -> Iterator["Branch"]:
    """What is launched inside may run beside what is launched after it, until `join`; it runs after all before it.

    `x_TD`: what it reads; on a CPU, and for many rows, there is no branch.

    Tensors made inside belong to the branch: they are let go of after `join` only. An operation that keeps a workspace is not
    launched on both sides of a branch: two launches of it would meet in there.
    """
    device = x_TD.device
    if not wanted or device.type != "cuda" or len(x_TD) > _most_rows[-1]:
        yield Branch(None, device)
        return
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield Branch(side, device)


class Branch:
    """`side` None: everything is in one line anyway."""

    def __init__(self, side: torch.cuda.Stream | None, device: torch.device) -> None:
        self._side, self._device = side, device

    def join(self) -> None:
        """What is launched from here on waits for the branch."""
        if self._side is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
