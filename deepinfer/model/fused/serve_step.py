"""A step in which a rank has no rows of its own: it runs its experts for others, as one graph where there are graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from deepinfer.model.fused.dispatch import fits_graph
from deepinfer.model.fused.step_graphs import GraphPool, GraphStats, StepGraphs

if TYPE_CHECKING:
    from deepinfer.model.fused.tables import Begun


class ServeStep:
    """`step(shared)` where others have up to `shared` rows each: `serve` is that of a fused model or of its draft module.

    With `graphs` (CUDA only) every number of rows becomes one, in memory of `pool`.
    """

    def __init__(
        self,
        serve: Callable[[], None],
        dispatch: Begun,
        device: torch.device,
        *,
        graphs: bool = False,
        pool: GraphPool | None = None,
    ) -> None:
        self._serve, self._dispatch = serve, dispatch
        self._graphs: StepGraphs[int] | None = None
        if graphs:
            self._graphs = StepGraphs(self._launch, lambda shared: None, device, "a step without rows", pool)
        self.stats = GraphStats() if self._graphs is None else self._graphs.stats

    @torch.inference_mode()
    def __call__(self, shared: int) -> None:
        """Launch the step; nothing waits for it."""
        if self._graphs is None or not fits_graph(self._dispatch, shared):
            self._launch(shared)
            self.stats.direct += 1
            return
        self._graphs.capture(shared)
        self._graphs.replay(shared)

    @torch.inference_mode()
    def capture(self, shared: int) -> None:
        """Capture the graph of such steps ahead of the first one."""
        if self._graphs is not None and fits_graph(self._dispatch, shared):
            self._graphs.capture(shared)

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        if self._graphs is not None:
            self._graphs.close()

    def _launch(self, shared: int) -> None:
        self._dispatch.begin(shared)
        self._serve()
