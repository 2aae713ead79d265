"""Gathering cache rows and unpacking them to float32 in one pass; missing rows are zeros. Bit-equal to the torch twin."""

import numba
import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.cpu_fp4_rows import INDEX_GROUP, MAGNITUDES, MAIN_GROUP
from deepinfer.kernels.cpu_fp8_rows import GROUP, POWERS, VALUES

ZERO = np.float32(0)
BOTH = np.stack((np.tile(MAGNITUDES, 16), np.repeat(MAGNITUDES, 16)), axis=1)  # byte → its low and high number


@numba.njit(cache=True, nogil=True, error_model="numpy")
def unpack_fp8(row: np.ndarray, values: np.ndarray, powers: np.ndarray, out: np.ndarray) -> None:
    width = len(out)
    for group in range(width // GROUP):
        scale = powers[row[width + group]]
        for i in range(group * GROUP, (group + 1) * GROUP):
            out[i] = values[row[i]] * scale


@numba.njit(cache=True, nogil=True, error_model="numpy")
def unpack_fp4(row: np.ndarray, group: int, both: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
    width = len(out)
    for g in range(width // group):
        scale = scales[row[width // 2 + g]]
        for i in range(g * group // 2, (g + 1) * group // 2):
            byte = row[i]
            out[2 * i] = both[byte, 0] * scale
            out[2 * i + 1] = both[byte, 1] * scale


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_fp8(store, outer, inner, values, powers, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        if outer[t] < 0:
            for i in range(out.shape[1]):
                out[t, i] = ZERO
        else:
            unpack_fp8(store[outer[t], inner[t]], values, powers, out[t])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_fp4(store, outer, inner, group, both, scales, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        if outer[t] < 0:
            for i in range(out.shape[1]):
                out[t, i] = ZERO
        else:
            unpack_fp4(store[outer[t], inner[t]], group, both, scales, out[t])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _read_plain(store, outer, inner, out):  # type: ignore[no-untyped-def]
    for t in range(len(outer)):
        if outer[t] < 0:
            for i in range(out.shape[1]):
                out[t, i] = ZERO
        else:
            for i in range(out.shape[1]):
                out[t, i] = store[outer[t], inner[t], i]


def read_rows(kind: str, store_ABR: Tensor, outer: Tensor, inner: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 [..., K] of the rows at (outer, inner); zeros where outer is negative. `dtype` must be float32."""
    assert dtype == torch.float32 and outer.shape == inner.shape and store_ABR.stride(2) == 1
    row = store_ABR.shape[2]
    width = {"window": row * 32 // 33, "main": row * 16 // 9, "index": row * 32 // 17, "plain": row}[kind]
    out = torch.empty(*outer.shape, width)
    flat, store = out.view(-1, width).numpy(), store_ABR.numpy()
    places = outer.reshape(-1).numpy(), inner.reshape(-1).numpy()
    if kind == "window":
        _read_fp8(store, *places, VALUES, POWERS, flat)
    elif kind == "main":
        _read_fp4(store, *places, MAIN_GROUP, BOTH, VALUES, flat)
    elif kind == "index":
        _read_fp4(store, *places, INDEX_GROUP, BOTH, POWERS, flat)
    else:
        _read_plain(store, *places, flat)
    return out
