"""Gathering cache rows and unpacking them to float32 in one pass; missing rows are zeros. Bit-equal to the torch twin.

The storage is addressed as one flat array: byte loops whose stride the compiler knows are twice as fast. Numbers are looked up
by code; a byte of two E2M1 codes as a pair.
"""

import numba
import numpy as np
import torch
from deepinfer.kernels.cpu_fp4_rows import INDEX_GROUP, MAGNITUDES, MAIN_GROUP
from deepinfer.kernels.cpu_fp8_rows import GROUP, POWERS, VALUES
from torch import Tensor

ZERO = np.float32(0)
# byte → its low and high number as float32, the two in one int64
PAIRS = np.stack((np.tile(MAGNITUDES, 16), np.repeat(MAGNITUDES, 16)), axis=1).view(np.int64).reshape(256)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def unpack_fp8(flat: np.ndarray, start: int, values: np.ndarray, powers: np.ndarray, out: np.ndarray) -> None:
    """One row from flat[start]."""
    width = len(out)
    codes, scales = flat[start : start + width], flat[start + width : start + width + width // GROUP]
    for group in range(width // GROUP):
        scale = powers[scales[group]]
        for i in range(group * GROUP, (group + 1) * GROUP):
            out[i] = values[codes[i]] * scale


@numba.njit(cache=True, nogil=True, error_model="numpy")
def unpack_fp4(
    flat: np.ndarray, start: int, group: int, pairs: np.ndarray, scales: np.ndarray, out: np.ndarray
) -> None:
    """One row from flat[start]."""
    width = len(out)
    middle = start + width // 2
    codes, scale_codes = flat[start:middle], flat[middle : middle + width // group]
    both = out.view(np.int64)
    for i in range(width // 2):
        both[i] = pairs[codes[i]]
    for g in range(width // group):
        scale, part = scales[scale_codes[g]], out[g * group : (g + 1) * group]
        for i in range(len(part)):
            part[i] *= scale


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_fp8(flat, strides, outer, inner, values, powers, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        if outer[t] < 0:
            for i in range(out.shape[1]):
                out[t, i] = ZERO
        else:
            unpack_fp8(flat, strides[0] + outer[t] * strides[1] + inner[t] * strides[2], values, powers, out[t])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_fp4(flat, strides, outer, inner, group, pairs, scales, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        if outer[t] < 0:
            for i in range(out.shape[1]):
                out[t, i] = ZERO
        else:
            start = strides[0] + outer[t] * strides[1] + inner[t] * strides[2]
            unpack_fp4(flat, start, group, pairs, scales, out[t])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_plain(flat, strides, outer, inner, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        start = strides[0] + outer[t] * strides[1] + inner[t] * strides[2]
        for i in range(out.shape[1]):
            out[t, i] = ZERO if outer[t] < 0 else flat[start + i]


def flattened(store_ABR: Tensor) -> tuple[np.ndarray, tuple[int, int, int]]:
    """The whole storage of a view, and where row (a, b) begins in it: offset + a · stride + b · stride."""
    assert store_ABR.ndim == 3 and store_ABR.stride(2) == 1
    count = store_ABR.untyped_storage().nbytes() // store_ABR.itemsize
    flat = store_ABR.as_strided((count,), (1,), 0).numpy()
    return flat, (store_ABR.storage_offset(), store_ABR.stride(0), store_ABR.stride(1))


def read_rows(kind: str, store_ABR: Tensor, outer: Tensor, inner: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 [..., K] of the rows at (outer, inner); zeros where outer is negative. `dtype` must be float32."""
    assert dtype == torch.float32 and outer.shape == inner.shape
    row = store_ABR.shape[2]
    width = {"window": row * 32 // 33, "main": row * 16 // 9, "index": row * 32 // 17, "plain": row}[kind]
    out = torch.empty(*outer.shape, width)
    numbers, (flat, strides) = out.view(-1, width).numpy(), flattened(store_ABR)
    places = outer.reshape(-1).numpy(), inner.reshape(-1).numpy()
    if kind == "window":
        _read_fp8(flat, strides, *places, VALUES, POWERS, numbers)
    elif kind == "main":
        _read_fp4(flat, strides, *places, MAIN_GROUP, PAIRS, VALUES, numbers)
    elif kind == "index":
        _read_fp4(flat, strides, *places, INDEX_GROUP, PAIRS, POWERS, numbers)
    else:
        _read_plain(flat, strides, *places, numbers)
    return out
