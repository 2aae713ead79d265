"""CUDA graphs of steps, captured when a size first comes: one for each size, all in one private pool of memory.

Whatever a graph's launches leave in that pool is overwritten by the next graph that is replayed, so that the memory of all is
that of the largest. What outlives a replay lies in buffers of the step's own.
"""

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar

import torch

from deepinfer.model.fused.memory_errors import is_out_of_memory
from deepinfer.model.fused.rehearsal import rehearsal

Size = TypeVar("Size", bound=Hashable)
LITTLE_BYTES = 4 << 30  # free memory of the device below which it is made before a capture


@dataclass
class GraphStats:
    """`direct`: steps that ran without a graph, because graphs are off or there was no memory for one."""

    captures: int = 0
    replays: int = 0
    direct: int = 0


class GraphPool:
    """The private memory of graphs that never run at the same time."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """For graphs to come: a pool ends with the last graph in it."""
        self.handle = torch.cuda.graph_pool_handle()


class StepGraphs(Generic[Size]):
    """`run(size)` launches a step of a size; it must find its inputs in buffers that stay. Not for concurrent streams.

    `stand_in(size)` makes those inputs harmless for the run that compiles kernels before a capture; `what` is for messages;
    `pool` may be shared with other graphs of the same stream. Its owner calls `close` once no graph is replayed any more.
    """

    def __init__(
        self,
        run: Callable[[Size], None],
        stand_in: Callable[[Size], None],
        device: torch.device,
        what: str = "a decode step",
        pool: GraphPool | None = None,
    ) -> None:
        self._run, self._stand_in, self._device, self._what = run, stand_in, device, what
        self.pool = GraphPool() if pool is None else pool
        self._graphs: dict[Size, torch.cuda.CUDAGraph] = {}
        self._direct: set[Size] = set()  # sizes for whose graphs memory did not suffice
        self.stats = GraphStats()

    def __len__(self) -> int:
        return len(self._graphs)

    def has(self, size: Size) -> bool:
        return size in self._graphs

    def replay(self, size: Size) -> None:
        """On the current stream; the size was captured before. Where there was no memory for a graph the same is launched."""
        if size in self._direct:
            self._run(size)
            self.stats.direct += 1
            return
        self._graphs[size].replay()
        self.stats.replays += 1

    def capture(self, size: Size) -> None:
        """Capture the graph of a size unless it has one; behind a capture the inputs are a stand-in's."""
        if size in self._graphs or size in self._direct:
            return
        self._stand_in(size)
        with rehearsal():
            self._run(size)  # compiles kernels and makes their workspaces, neither of which a capture can hold
        try:
            run = partial(self._run, size)
            self._graphs[size] = captured(run, self._device, self.pool.handle, f"{self._what} of {size}")
        except RuntimeError as fault:
            if not self._graphs:
                self.pool.renew()
            if not is_out_of_memory(fault):
                raise
            self._direct.add(size)
            return
        self.stats.captures += 1

    def close(self) -> None:
        """End all graphs, once the device is through with them, and give their memory back."""
        torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self.pool.renew()


def captured(
    run: Callable[[], object], device: torch.device, pool: Any = None, what: str = "a step"
) -> torch.cuda.CUDAGraph:
    """The launches of `run` as a graph, in memory of `pool` (None: its own). They have run before.

    Waits for the device first. RuntimeError with the cause where something cannot be captured.
    """
    torch.cuda.synchronize(device)
    if torch.cuda.mem_get_info(device)[0] < LITTLE_BYTES:
        torch.cuda.empty_cache()  # a capture cannot wait until what ran before gives its memory back
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(_side_stream(device)), no_collection():
            pool = torch.cuda.graph_pool_handle() if pool is None else pool
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
    except (RuntimeError, ValueError, AssertionError) as fault:
        raise RuntimeError(
            f"{what} cannot be captured into a CUDA graph: {first_cause(fault)}. What is launched in it may neither wait for "
            "the device nor need memory of the host. Run without graphs to see the step itself"
        ) from fault
    return graph


@contextmanager
def no_collection() -> Iterator[None]:
    """The collector may find graphs and events that nobody needs any longer: to end one in a capture would spoil it.

    It is held off, not run before: with all that an engine has loaded a run takes longer than ten captures.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def first_cause(fault: BaseException) -> str:
    """The first line of the error that began it: a capture that fails also fails to end."""
    while fault.__context__ is not None:
        fault = fault.__context__
    return (str(fault).splitlines() or [type(fault).__name__])[0]


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The default stream cannot be captured; one other serves all captures of a device."""
    return torch.cuda.Stream(device)
