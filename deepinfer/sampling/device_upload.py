"""Numbers of many shapes on their way to a device: written on the host, taken over in one copy that nobody waits for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Sections = dict[str, tuple[str, tuple[int, ...]]]  # name → dtype, and one or two dimensions
_BESIDE = 16  # bytes: what a section's place is a multiple of
_TYPES = {"int64": (torch.int64, 8), "float64": (torch.float64, 8), "int32": (torch.int32, 4)}


class Upload:
    """`host[name]` is an array to be written, of an own shape and one of three dtypes; `send` makes the device's of all.

    With `stays` all memory is the same for every `send`: the host may write again when the device is through with the last one.
    """

    def __init__(self, sections: Sections, device: torch.device, *, stays: bool = False) -> None:
        self._device, self._sections, self._starts, end = device, sections, [], 0
        for dtype, shape in sections.values():
            self._starts.append(end)
            end += -(-shape[0] * shape[-1] ** (len(shape) - 1) * _TYPES[dtype][1] // _BESIDE) * _BESIDE
        self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
        bytes_ = self._buffer.numpy()
        self.host = {
            name: np.ndarray(shape, dtype, bytes_, start)
            for (name, (dtype, shape)), start in zip(sections.items(), self._starts)
        }
        self._whole = torch.empty(end, dtype=torch.uint8, device=device) if stays else None
        self._kept = None if self._whole is None else self._parts(self._whole)

    def send(self) -> dict[str, Tensor]:
        """All arrays, in order of the device's current stream."""
        if self._whole is not None and self._kept is not None:
            self._whole.copy_(self._buffer, non_blocking=True)
            return self._kept
        return self._parts(self._buffer.to(self._device, non_blocking=True))

    def _parts(self, whole: Tensor) -> dict[str, Tensor]:
        typed = {name: (whole.view(dtype), size) for name, (dtype, size) in _TYPES.items()}
        found = {}
        for (name, (dtype, shape)), start in zip(self._sections.items(), self._starts):
            numbers, size = typed[dtype]
            strides = (1,) if len(shape) == 1 else (shape[1], 1)
            found[name] = numbers.as_strided(shape, strides, start // size)
        return found
