"""How long a call takes: on a GPU the replay of its CUDA graph between two events, on a CPU by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

from deepinfer.model.fused.step_graphs import captured

Call = Callable[[], object]
LEAST_RUNS = 3
LONG_MS = 100.0  # calls that long are warm after one
RUN_MS, MOST_AT_ONCE = 40.0, 8  # a run lasts about as long


@dataclass(frozen=True)
class Took:
    """Milliseconds of one call: median and extremes of `runs`."""

    median_ms: float
    least_ms: float
    most_ms: float
    runs: int


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device, *, graphs: bool, runs: int = 9, most_s: float = 1.0) -> None:
        self.device, self.graphs = device, graphs and device.type == "cuda"
        self.runs, self.most_s = runs, most_s

    def replayed(self, call: Call) -> Call:
        """The call as the replay of a graph with memory of its own, or itself where graphs are off. It runs once before."""
        call()
        return captured(call, self.device).replay if self.graphs else call

    def time(self, call: Call) -> Took:
        """At least 3 runs, and as many of `runs` as `most_s` seconds allow. Short calls are launched behind each other, as an
        engine does with steps: the host's part hides behind the device's."""
        first_ms = self._once_ms(call, 1)
        if first_ms < LONG_MS:
            first_ms = self._once_ms(call, 1)
        at_once = ceil(min(MOST_AT_ONCE, RUN_MS / max(first_ms, 1e-3)))
        times: list[float] = []
        while len(times) < self.runs and (len(times) < LEAST_RUNS or sum(times) * at_once < self.most_s * 1e3):
            times.append(self._once_ms(call, at_once))
        return Took(statistics.median(times), min(times), max(times), len(times))

    def _once_ms(self, call: Call, at_once: int) -> float:
        if self.device.type != "cuda":
            started = time.perf_counter()
            for _ in range(at_once):
                call()
            return (time.perf_counter() - started) * 1e3 / at_once
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(at_once):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / at_once
