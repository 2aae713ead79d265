"""Times of device calls side by side, as graph replays over rotating inputs.

Candidates are interleaved forwards and backwards (A B B A), so that a clock that drifts favours nobody. A candidate is a list
of calls, one for each copy of its inputs: copies together should exceed the second-level cache.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Call = Callable[[], object]
REPLAY_US = 300.0  # a replay lasts at least about this long, so that its launch does not count
COPY_BYTES_PER_S = 4.25e12  # measured on an H200, read and written bytes together
PEAK_FLOPS = {
    "bf16": 790e12,
    "fp8": 1390e12,
    "tf32": 395e12,
    "f32": 60e12,
}  # measured on an H200 at 8192³; f32 from the sheet


@dataclass(frozen=True)
class Spread:
    """Microseconds of one call over the runs."""

    median_us: float
    p10_us: float
    p90_us: float


def time_calls(candidates: Mapping[str, Sequence[Call]], runs: int = 50, graph: bool = True) -> dict[str, Spread]:
    """Spread of every candidate's time per call. Without `graph` the calls are launched one by one."""
    replays = {name: _replay(list(calls), graph) for name, calls in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(runs):
        names = list(replays) if turn % 2 == 0 else list(reversed(replays))
        for name in names:
            replay, count = replays[name]
            samples[name].append(elapsed_us(replay) / count)
    return {name: Spread(*(float(np.percentile(times, q)) for q in (50, 10, 90))) for name, times in samples.items()}


def floor_us(flops: float, dtype: str, moved_bytes: float) -> tuple[float, str]:
    """The time that measured ceilings allow, and which of them binds."""
    compute, memory = flops / PEAK_FLOPS[dtype] * 1e6, moved_bytes / COPY_BYTES_PER_S * 1e6
    return (compute, "compute") if compute > memory else (memory, "memory")


def captured(calls: Sequence[Call], repeats: int = 1) -> torch.cuda.CUDAGraph:
    """All calls in one graph, `repeats` times over. They have run before: what they compile or allocate once is not in it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        for _ in range(repeats):
            for call in calls:
                call()
    return graph


def elapsed_us(call: Call) -> float:
    """Microseconds on the device between two events around the call."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def _replay(calls: list[Call], graph: bool) -> tuple[Call, int]:
    """What is timed, and how many calls it holds: replays last about as long, however slowly Python launches a candidate."""
    for call in (*calls, *calls):
        call()
    torch.cuda.synchronize()
    if not graph:
        return (lambda: [call() for call in calls]), len(calls)
    recorded = captured(calls)
    once_us = min(elapsed_us(recorded.replay) for _ in range(3))
    repeats = math.ceil(REPLAY_US / max(once_us, 1.0))
    if repeats > 1:
        recorded = captured(calls, repeats)
    for _ in range(3):
        recorded.replay()
    torch.cuda.synchronize()
    return recorded.replay, repeats * len(calls)
