"""RMS norm of float32 rows, one pass, bit-equal to the torch twin: squares are summed as a tree of halves."""

import numba
import numpy as np
import torch
from torch import Tensor

ONE = np.float32(1)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def tree_sum(x: np.ndarray, width: int) -> np.float32:
    """Sum of x[:width], overwriting x: halves are added while the width is even, an odd rest from left to right."""
    while width > 1 and width % 2 == 0:
        width //= 2
        for i in range(width):
            x[i] += x[i + width]
    total = x[0]
    for i in range(1, width):
        total += x[i]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def reciprocal_rms(row: np.ndarray, squares: np.ndarray, eps: np.float32) -> np.float32:
    """1 / sqrt(mean(row²) + eps); `squares` is scratch of the row's length."""
    width = len(row)
    for i in range(width):
        squares[i] = row[i] * row[i]
    return ONE / np.sqrt(tree_sum(squares, width) / np.float32(width) + eps)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _norm(x: np.ndarray, weight: np.ndarray, eps: np.float32, out: np.ndarray) -> None:
    squares = np.empty(x.shape[1], np.float32)
    for t in range(x.shape[0]):
        factor = reciprocal_rms(x[t], squares, eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * factor * weight[i]


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · weight [T, D]; float32."""
    assert x_TD.dtype == weight_D.dtype == torch.float32 and x_TD.ndim == 2
    out_TD = torch.empty(x_TD.shape, dtype=x_TD.dtype)
    _norm(x_TD.contiguous().numpy(), weight_D.numpy(), np.float32(eps), out_TD.numpy())
    return out_TD
