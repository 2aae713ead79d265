"""Rows that lie in a CUDA graph's memory, for whoever may want to look at one of them before the next graph is replayed.

They are not held on to: the graphs of other sizes, which are never replayed at the same time, have the same place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LentRows:
    """Rows of a tensor that a capture made."""

    def __init__(self, rows: Tensor) -> None:
        self._device = rows.device
        self.__cuda_array_interface__: dict[str, Any] = rows.__cuda_array_interface__

    def __getitem__(self, row: int) -> Tensor:
        whole: Tensor = torch.as_tensor(self, device=self._device)
        return whole[row]


def lent(rows: Tensor) -> Tensor | LentRows:
    """The rows, lent where they are made in a capture."""
    return LentRows(rows) if rows.is_cuda and torch.cuda.is_current_stream_capturing() else rows
