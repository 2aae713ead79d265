"""Rotary embedding of the last dims, float32, bit-equal to the torch twin."""

import numba
import numpy as np
import torch
from torch import Tensor


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rotate(x: np.ndarray, rope: np.ndarray, inverse: bool, out: np.ndarray) -> None:
    heads, width, frequencies = x.shape[1], x.shape[2], rope.shape[2]
    still = width - 2 * frequencies
    for t in range(x.shape[0]):
        for h in range(heads):
            for i in range(still):
                out[t, h, i] = x[t, h, i]
            for f in range(frequencies):
                cos, sin = rope[t, 0, f], rope[t, 1, f]
                if inverse:
                    sin = -sin
                even, odd = x[t, h, still + 2 * f], x[t, h, still + 2 * f + 1]
                out[t, h, still + 2 * f] = even * cos - odd * sin
                out[t, h, still + 2 * f + 1] = odd * cos + even * sin


def rotate(x: Tensor, rope_T2F: Tensor, inverse: bool = False) -> Tensor:
    """x [T, K] or [T, H, K] with its last 2F dims turned; float32."""
    assert x.dtype == rope_T2F.dtype == torch.float32
    out = torch.empty(x.shape)
    x_THK = x if x.ndim == 3 else x.unsqueeze(1)
    _rotate(x_THK.contiguous().numpy(), rope_T2F.numpy(), inverse, out.view(x_THK.shape).numpy())
    return out
