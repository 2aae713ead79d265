"""What the engine asks of an executor beyond the seam: its times, preparation of requests, and poison for tests."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Executor, SamplingParams


class TimedExecutor(Executor, Protocol):
    """An executor that says where its time went."""

    @property
    def times(self) -> ExecutorTimes: ...

    def prepare(self, params: SamplingParams) -> None:
        """Build what sampling with these valid parameters needs; raises ParamsError. `admit` cannot fail afterwards."""

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        """Fill freed blocks and the state of a freed slot with NaN bytes, so that a stale read shows.

        Slot -1 is none; behind the slots of sequences lie those of snapshots.
        """
