"""Where the time of a step goes, operation by operation, as it runs inside a CUDA graph.

Every operation is framed by two events that are nodes of the graph. Such a node takes time of its own, which pairs of events
with nothing between them measure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deepinfer.ops.device import NAMES, DeviceOps

REPLAYS = 5
EMPTY = "nothing"
REST = "between operations"
Call = Callable[[], object]


@dataclass(frozen=True)
class OpTime:
    """All calls of one operation on operands of one shape in a step; `ms` of all of them together."""

    op: str
    shape: str
    calls: int
    ms: float


class Watch:
    """Operations that can be watched; while nobody does, a call costs one look."""

    def __init__(self, ops: DeviceOps) -> None:
        framed: dict[str, Any] = {name: self._framed(name, getattr(ops, name)) for name in NAMES}
        self.ops = replace(ops, **framed)
        self._frames: list[tuple[str, str, torch.cuda.Event, torch.cuda.Event]] | None = None

    def profile(self, call: Call) -> list[OpTime]:
        """Times by operation and shape, most first; what no operation takes is the last entry."""
        call()
        torch.cuda.synchronize()
        self._frames = []
        graph, whole = torch.cuda.CUDAGraph(), (_event(), _event())
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            whole[0].record()
            for _ in range(32):
                self._frame(EMPTY, "", lambda: None)
            call()
            whole[1].record()
        frames, self._frames = self._frames, None
        samples = []
        for _ in range(REPLAYS):
            graph.replay()
            torch.cuda.synchronize()
            samples.append([start.elapsed_time(end) for _, _, start, end in frames])
        times = [statistics.median(column) for column in zip(*samples)]
        total = whole[0].elapsed_time(whole[1])
        graph.reset()
        return _summed(frames, times, total)

    def _framed(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            if self._frames is None:
                return operation(*args, **kwargs)
            return self._frame(name, _shape_of(args), lambda: operation(*args, **kwargs))

        return ask

    def _frame(self, name: str, shape: str, call: Call) -> Any:
        assert self._frames is not None
        start, end = _event(), _event()
        start.record()
        result = call()
        end.record()
        sizes = f"{shape} → {' × '.join(map(str, result.shape))}" if isinstance(result, Tensor) else shape
        self._frames.append((name, sizes, start, end))
        return result


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, external=True)


def _shape_of(args: tuple[Any, ...]) -> str:
    """Of the first tensor."""
    first = next((arg for arg in args if isinstance(arg, Tensor)), None)
    return "" if first is None else " × ".join(map(str, first.shape))


def _summed(frames: list[Any], times: list[float], total_ms: float) -> list[OpTime]:
    empty = statistics.median(ms for (name, *_), ms in zip(frames, times) if name == EMPTY)
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for (name, shape, *_), ms in zip(frames, times):
        if name != EMPTY:
            calls, so_far = sums.get((name, shape), (0, 0.0))
            sums[name, shape] = calls + 1, so_far + max(0.0, ms - empty)
    found = [OpTime(op, shape, calls, ms) for (op, shape), (calls, ms) in sums.items()]
    rest = total_ms - sum(times)
    return [*sorted(found, key=lambda entry: -entry.ms), OpTime(REST, "", 1, rest)]
