"""The router's choice and weights, float32, bit-equal to the torch twin."""

import numba
import numpy as np
import torch
from torch import Tensor

TINY = np.float32(1e-20)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _choose(scores: np.ndarray, bias: np.ndarray, factor: np.float32, picks: np.ndarray, weights: np.ndarray) -> None:
    experts = scores.shape[1]
    free = np.empty(experts, np.bool_)
    for t in range(scores.shape[0]):
        free[:] = True
        for slot in range(picks.shape[1]):
            best = -1
            for e in range(experts):
                if free[e] and (best < 0 or scores[t, e] + bias[e] > scores[t, best] + bias[best]):
                    best = e
            free[best] = False
            picks[t, slot] = best
        total = scores[t, picks[t, 0]]
        for slot in range(1, picks.shape[1]):
            total += scores[t, picks[t, slot]]
        for slot in range(picks.shape[1]):
            weights[t, slot] = scores[t, picks[t, slot]] * factor / (total + TINY)


def choose_experts(scores_TE: Tensor, bias_E: Tensor, chosen: int, factor: float) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, X], best first, and weights [T, X]; float32."""
    assert scores_TE.dtype == bias_E.dtype == torch.float32
    picks, weights = torch.empty(scores_TE.shape[0], chosen, dtype=torch.int64), torch.empty(scores_TE.shape[0], chosen)
    _choose(scores_TE.contiguous().numpy(), bias_E.numpy(), np.float32(factor), picks.numpy(), weights.numpy())
    return picks, weights
