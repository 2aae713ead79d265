"""What a drafter does with the rows of a decode step, as one CUDA graph for each number of rows.

Legend: T rows · F features.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.model.fused.step_graphs import StepGraphs

Observe = Callable[[Tensor, Tensor, Tensor], None]  # features [T, F], positions [T], rows of the rings [T] → nothing


class ObservedRows:
    """`observe`, launched as a graph. Steps have at most `most_rows` rows of `num_features` numbers."""

    def __init__(
        self, observe: Observe, most_rows: int, num_features: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._observe = observe
        self._features_TF = torch.zeros(most_rows, num_features, dtype=dtype, device=device)
        self._positions_T = torch.zeros(most_rows, dtype=torch.int32, device=device)
        self._store_T = torch.full_like(self._positions_T, -1)
        self._graphs = StepGraphs(self._run, self._see_nothing, device, "what drafts want of a step")

    def __call__(self, features_TF: Tensor, positions_T: Tensor, store_T: Tensor) -> None:
        count = len(store_T)
        self._graphs.capture(count)
        self._features_TF[:count].copy_(features_TF)
        self._positions_T[:count].copy_(positions_T)
        self._store_T[:count].copy_(store_T)
        self._graphs.replay(count)

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        self._graphs.close()

    def _see_nothing(self, count: int) -> None:
        self._store_T[:count].fill_(-1)

    def _run(self, count: int) -> None:
        self._observe(self._features_TF[:count], self._positions_T[:count], self._store_T[:count])
