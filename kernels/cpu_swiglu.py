"""SwiGLU with limits and routing weight, float32: two compiled passes around one torch.exp. Bit-equal to the torch twin.

min and max would swallow a NaN, comparisons keep it.
"""

import numba
import numpy as np
import torch
from torch import Tensor

ONE = np.float32(1)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _exponents(h: np.ndarray, limit: np.float32, out: np.ndarray) -> None:
    for t in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[t, i] = -(limit if h[t, i] > limit else h[t, i])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _finish(h: np.ndarray, weight: np.ndarray, weighted: bool, limit: np.float32, out: np.ndarray) -> None:
    inner = out.shape[1]
    for t in range(out.shape[0]):
        for i in range(inner):
            gate, up = h[t, i], h[t, inner + i]
            gate = limit if gate > limit else gate
            up = limit if up > limit else (-limit if up < -limit else up)
            out[t, i] = gate / (ONE + out[t, i]) * up
        if weighted:
            for i in range(inner):
                out[t, i] *= weight[t]


def swiglu(h_TJ: Tensor, weight_T: Tensor | None, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight [T, I] of contiguous float32 gate | up [T, 2 I]."""
    assert h_TJ.dtype == torch.float32 and h_TJ.is_contiguous()
    out_TI = torch.empty(h_TJ.shape[0], h_TJ.shape[1] // 2)
    _exponents(h_TJ.numpy(), np.float32(limit), out_TI.numpy())
    out_TI.exp_()
    weight = out_TI[:, 0] if weight_T is None else weight_T
    _finish(h_TJ.numpy(), weight.contiguous().numpy(), weight_T is not None, np.float32(limit), out_TI.numpy())
    return out_TI
