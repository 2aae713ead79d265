"""Writing a sublayer's output into the residual streams, float32, bit-equal to the torch twin."""

import numba
import numpy as np
import torch
from torch import Tensor


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _mix(x: np.ndarray, sub: np.ndarray, mixing: np.ndarray, write: np.ndarray, out: np.ndarray) -> None:
    streams, width = x.shape[1], x.shape[2]
    for t in range(x.shape[0]):
        for n in range(streams):
            factor = write[t, n]
            for d in range(width):
                out[t, n, d] = factor * sub[t, d]
            for m in range(streams):
                factor = mixing[t, m, n]
                for d in range(width):
                    out[t, n, d] += factor * x[t, m, d]


def hyper_mix(x_TND: Tensor, out_TD: Tensor, mixing_TMN: Tensor, write_TN: Tensor) -> Tensor:
    """x'_n = write_n · out + Σ_m mixing[m, n] · x_m [T, N, D], in that order; contiguous float32."""
    assert x_TND.is_contiguous() and x_TND.dtype == out_TD.dtype == torch.float32
    result = torch.empty(x_TND.shape)
    _mix(x_TND.numpy(), out_TD.contiguous().numpy(), mixing_TMN.numpy(), write_TN.numpy(), result.numpy())
    return result
