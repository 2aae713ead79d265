"""When a device reached which point of its work, and the regions of a step in which nobody may wait for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceClock:
    """Marks points in the queue of a device: the stream that is current when the clock is made."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def mark(self) -> Mark:
        if self._stream is None:
            return Mark(None, time.perf_counter())
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return Mark(event, 0.0)


class Mark:
    """A point in a device's queue. A CPU has no queue: it is there at once."""

    __slots__ = ("_event", "_reached_s")

    def __init__(self, event: torch.cuda.Event | None, reached_s: float) -> None:
        self._event, self._reached_s = event, reached_s

    def wait(self) -> None:
        """Until the device has come to it."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Seconds between the two on the device, which has reached both."""
        if self._event is None or earlier._event is None:
            return self._reached_s - earlier._reached_s
        return earlier._event.elapsed_time(self._event) * 1e-3


class LaunchGuard:
    """`with guard:` fails whatever makes the host wait for the device, where the device has a queue.

    torch reports what its own operations wait for; a kernel's launcher that waits by other means goes unseen. The mode is
    that of the whole process: work of other threads on a GPU would fail too. So it is for tests and benchmarks, one engine
    at a time.
    """

    def __init__(self, device: torch.device, on: bool = True) -> None:
        self._on = on and device.type == "cuda"
        if self._on:
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._on:
            yield
            return
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
