"""A device whose memory runs out: any operation of a step that makes a tensor may find none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.engine.device_executor import DeviceExecutor

EVERY = 40_000  # allocations, on average: a few steps of a small crowd have as many
CALLS = ("submit", "sample", "admit")


class Failing(TorchDispatchMode):
    def __init__(self, shortage: Shortage) -> None:
        super().__init__()
        self.shortage = shortage

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        returns = func._schema.returns
        if returns and all(one.alias_info is None for one in returns):
            self.shortage.ask(str(func))
        return func(*args, **kwargs or {})


class Shortage:
    """Now and then a run of operations fails, one try after another, in the words of torch or of a driver."""

    def __init__(self, executor: DeviceExecutor, rng: np.random.Generator) -> None:
        self.rng, self.left, self.times, self.failed = rng, 0, 0, []
        self._wait()
        for name in CALLS:
            setattr(executor, name, self._short(getattr(executor, name)))

    def ask(self, operation: str) -> None:
        self.left -= 1
        if self.left > 0:
            return
        self.times -= 1
        if self.times <= 0:
            self._wait()
        self.failed.append(operation)
        if self.rng.random() < 0.2:
            raise RuntimeError(f"CUDA error: out of memory, planted in {operation}")
        raise torch.OutOfMemoryError(f"planted in {operation}")

    def _wait(self) -> None:
        self.left, self.times = int(self.rng.geometric(1 / EVERY)), int(self.rng.choice([1, 1, 2, 4]))

    def _short(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def short(*args: Any) -> Any:
            with Failing(self):
                return call(*args)

        return short
