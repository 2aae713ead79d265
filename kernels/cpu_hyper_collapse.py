"""Reading the residual streams into one row, float32, bit-equal to the torch twin."""

import numba
import numpy as np
import torch
from torch import Tensor


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _collapse(x: np.ndarray, mix: np.ndarray, out: np.ndarray) -> None:
    for t in range(x.shape[0]):
        for d in range(x.shape[2]):
            out[t, d] = x[t, 0, d] * mix[t, 0]
        for n in range(1, x.shape[1]):
            for d in range(x.shape[2]):
                out[t, d] += x[t, n, d] * mix[t, n]


def hyper_collapse(x_TND: Tensor, mix_TN: Tensor) -> Tensor:
    """Σ_n mix_n · x_n [T, D], streams from first to last; contiguous float32."""
    assert x_TND.is_contiguous() and x_TND.dtype == mix_TN.dtype == torch.float32
    out_TD = torch.empty(x_TND.shape[0], x_TND.shape[2])
    _collapse(x_TND.numpy(), mix_TN.numpy(), out_TD.numpy())
    return out_TD
