"""Hyper-connection coefficients with their 20 Sinkhorn rounds, float32, bit-equal to the torch twin.

Two compiled passes around one torch.exp, whose bits a compiled exp would not have.
"""

import numba
import numpy as np
import torch
from deepinfer.kernels.cpu_rms_norm import reciprocal_rms
from torch import Tensor

ONE, TWO = np.float32(1), np.float32(2)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _exponents(
    x: np.ndarray,
    raw: np.ndarray,
    base: np.ndarray,
    scale: np.ndarray,
    streams: int,
    norm_eps: np.float32,
    out: np.ndarray,
) -> None:
    """What exp is taken of: minus the logits of both sigmoids, and the mixing logits minus their row's largest."""
    squares = np.empty(x.shape[1], np.float32)
    for t in range(x.shape[0]):
        factor = reciprocal_rms(x[t], squares, norm_eps)
        for i in range(streams):
            out[t, i] = -(raw[t, i] * factor * scale[0] + base[i])
            j = streams + i
            out[t, j] = -(raw[t, j] * factor * scale[1] + base[j])
        for m in range(streams):
            first = 2 * streams + m * streams
            peak = np.float32(-np.inf)
            for i in range(first, first + streams):
                out[t, i] = raw[t, i] * factor * scale[2] + base[i]
                if not out[t, i] <= peak:
                    peak = out[t, i]
            for i in range(first, first + streams):
                out[t, i] -= peak


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _sum(x: np.ndarray) -> np.float32:
    """Tree of halves of a short row; see tree_sum."""
    if len(x) == 4:
        return (x[0] + x[2]) + (x[1] + x[3])
    scratch = x.copy()
    width = len(x)
    while width > 1 and width % 2 == 0:
        width //= 2
        for i in range(width):
            scratch[i] += scratch[i + width]
    total = scratch[0]
    for i in range(1, width):
        total += scratch[i]
    return total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _normalise_rows(mixing: np.ndarray, eps: np.float32) -> None:
    for m in range(mixing.shape[0]):
        total = _sum(mixing[m]) + eps
        for n in range(mixing.shape[1]):
            mixing[m, n] /= total


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _coefficients(
    grown: np.ndarray, eps: np.float32, iterations: int, read: np.ndarray, mixing: np.ndarray, write: np.ndarray
) -> None:
    streams = read.shape[1]
    turned = np.empty((streams, streams), np.float32)
    for t in range(grown.shape[0]):
        for i in range(streams):
            read[t, i] = ONE / (ONE + grown[t, i]) + eps
            write[t, i] = TWO * (ONE / (ONE + grown[t, streams + i]))
        for m in range(streams):
            row = grown[t, (2 + m) * streams : (3 + m) * streams]
            total = _sum(row)
            for n in range(streams):
                mixing[t, m, n] = row[n] / total + eps
        for i in range(iterations):
            if i > 0:
                _normalise_rows(mixing[t], eps)
            for m in range(streams):
                for n in range(streams):
                    turned[n, m] = mixing[t, m, n]
            _normalise_rows(turned, eps)
            for m in range(streams):
                for n in range(streams):
                    mixing[t, m, n] = turned[n, m]


def hyper_coefficients(
    x_TND: Tensor, raw_TC: Tensor, base_C: Tensor, scale_3: Tensor, norm_eps: float, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Read weights [T, N], mixing [T, source, destination], write weights [T, N]; see the twin. Contiguous float32."""
    rows, streams = x_TND.shape[:2]
    assert (
        x_TND.is_contiguous()
        and raw_TC.is_contiguous()
        and x_TND.dtype == raw_TC.dtype == base_C.dtype == torch.float32
    )
    exponents = torch.empty(raw_TC.shape)
    _exponents(
        x_TND.view(rows, -1).numpy(),
        raw_TC.numpy(),
        base_C.numpy(),
        scale_3.numpy(),
        streams,
        np.float32(norm_eps),
        exponents.numpy(),
    )
    grown = exponents.exp_()
    read, write, mixing = torch.empty(rows, streams), torch.empty(rows, streams), torch.empty(rows, streams, streams)
    _coefficients(grown.numpy(), np.float32(eps), iterations, read.numpy(), mixing.numpy(), write.numpy())
    return read, mixing, write
