"""What launches allocate, without a device: the model's own code on tensors without memory, its kernels' launches left out.

Every piece of memory is counted from its making to its end, in the order in which the host's code makes and drops it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from deepinfer.ops.device import DeviceOps
from deepinfer.ops.device_choice import device_ops

META = torch.device("meta")
ROUNDED = 512  # bytes: what an allocator gives at least
MULTIPROCESSORS = 132


@dataclass
class Trace:
    """Bytes that live now, and at most; `steps`: each allocation's bytes, and minus them at its end."""

    live: int = 0
    peak: int = 0
    steps: list[int] = field(default_factory=list)

    def add(self, num_bytes: int) -> None:
        self.live += num_bytes
        self.peak = max(self.peak, self.live)
        self.steps.append(num_bytes)


class _Watch(TorchDispatchMode):
    """Counts what is made on the device without memory while it is entered; later ends count too."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].device != META and args[1].device == META:
            return args[0]  # results on their way to the host
        known = {id(t.untyped_storage()) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor) and tensor.device == META:
                storage = tensor.untyped_storage()
                if id(storage) not in known and id(storage) not in self._known and storage.nbytes():
                    self._note(storage)
        return out

    def _note(self, storage: Any) -> None:
        num_bytes, key = -(-storage.nbytes() // ROUNDED) * ROUNDED, id(storage)
        self.trace.add(num_bytes)

        def ended(_: object) -> None:
            self._known.pop(key, None)
            self.trace.add(-num_bytes)

        self._known[key] = weakref.ref(storage, ended)


@contextmanager
def traced() -> Iterator[Trace]:
    trace = Trace()
    with _Watch(trace):
        yield trace


def without_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on kernels of this package allocate what they return and compute nothing."""
    import triton.runtime.interpreter
    from deepinfer.kernels import cuda_program

    import deepinfer.ops.general
    import deepinfer.ops.hopper  # noqa: F401 - so that their kernels are imported

    def kernel(self: object, name: str, **how: object) -> object:
        return lambda *args: None

    monkeypatch.setattr(cuda_program.CudaProgram, "kernel", kernel)
    stubs = {"device_of": lambda x: -1, "num_multiprocessors": lambda device: MULTIPROCESSORS, "box_map": _nothing}
    for name, module in list(sys.modules.items()):
        if name.startswith("deepinfer.kernels."):
            for attribute, stub in stubs.items():
                if hasattr(module, attribute):
                    monkeypatch.setattr(module, attribute, stub)
    for kind in (triton.runtime.jit.JITFunction, triton.runtime.interpreter.InterpretedFunction):
        monkeypatch.setattr(kind, "run", _nothing)
        monkeypatch.setattr(kind, "__getitem__", lambda self, grid: _nothing)


def _nothing(*args: object, **kwargs: object) -> None:
    return None


def ops_without_memory(config: Any) -> DeviceOps:
    """Those that the model gets on a GPU; weights are prepared by shape alone."""
    from deepinfer.kernels.cuda_fp8_linear import RECORD_BYTES, PreparedFp8Weight
    from deepinfer.kernels.fp4_expert_tiles import PIECE_BYTES, TiledFp4Experts

    ops, _ = device_ops(config, torch.bfloat16)
    asked: dict[str, Any] = {}

    def of(name: str) -> str:
        return str(getattr(ops, name).__wrapped__.__module__)

    if "cuda_fp8_linear" in of("fp8_linear"):

        def fp8(weight: Any) -> PreparedFp8Weight:
            outputs, inputs = weight.codes_NK.shape
            records = weight.scale.new_empty(outputs // 128, inputs // 64, 2, RECORD_BYTES)
            return PreparedFp8Weight(records, outputs, inputs)

        asked["prepare_fp8_weight"] = fp8
    if "fp4_expert" in str(ops.fp4_grouped_linear.__wrapped__.__module__) or "cuda_fp4" in of("fp4_grouped_linear"):

        def experts(weight: Any, paired: bool = False) -> TiledFp4Experts:
            count, rows, half = weight.codes_ENB.shape
            pieces = weight.codes_ENB.new_empty(count, rows // 256, half // 32, PIECE_BYTES)
            return TiledFp4Experts(pieces, torch.zeros(2, dtype=torch.int32, device=META), paired)

        asked |= {"prepare_experts": experts, "prepare_experts_up": lambda weight: experts(weight, True)}
    return replace(ops, **asked)
