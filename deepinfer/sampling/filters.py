"""Which tokens may be chosen: top-k, then top-p, then min-p, on one row. Ties keep the lowest token id.

Shapes: V vocabulary · K tokens kept. Scores are logits divided by the temperature, in float64.
"""

from __future__ import annotations

import numpy as np

_FLOORS = (0.1, 0.01, 0.001)  # of the best token's weight
_SURELY = 1 + 1e-9  # more than sums in another order may differ by


def best(x_V: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k largest entries, largest first, the lowest id first among equals. No NaN."""
    k = min(k, len(x_V))
    if k == 0:
        return np.empty(0, np.int64)
    threshold = np.partition(x_V, len(x_V) - k)[len(x_V) - k]
    above = np.flatnonzero(x_V > threshold)
    ids = np.concatenate([above, np.flatnonzero(x_V == threshold)[: k - len(above)]])
    return ids[np.argsort(-x_V[ids], kind="stable")]


def survivors(scores_V: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Ids (int64, rising) that pass every filter; at least one does when any score is finite.

    top-k keeps exactly k tokens. top-p keeps the fewest, most likely first, whose share of the probability left after top-k
    reaches p. min-p keeps tokens at least `min_p` times as likely as the best.
    """
    if 0 < top_k < len(scores_V):
        ids_K = np.sort(best(scores_V, top_k))
        ids_K = ids_K[scores_V[ids_K] > -np.inf]
    else:
        ids_K = np.flatnonzero(scores_V > -np.inf)
    if top_p >= 1.0 and min_p <= 0.0:
        return ids_K
    scores_K = scores_V[ids_K]
    weights_K = np.exp(scores_K - scores_K.max())  # the best token weighs 1
    keep_K = np.ones(len(ids_K), dtype=bool)
    if top_p < 1.0:
        keep_K[:] = False
        keep_K[_nucleus(weights_K, top_p)] = True
    if min_p > 0.0:
        keep_K &= weights_K >= min_p
    return ids_K[keep_K]


def _nucleus(weights_K: np.ndarray, top_p: float) -> np.ndarray:
    """Indices of the fewest heaviest entries that reach `top_p` of the total weight; the heaviest weighs 1.

    Only entries that may be needed are sorted: the first of a few floors above which there is enough weight, and at last an
    even share of what top-p may leave out, since all entries below that weigh less than it together.
    """
    total = weights_K.sum()
    for floor in (*_FLOORS, (1.0 - top_p) * total / len(weights_K)):
        heavy = np.flatnonzero(weights_K >= floor)
        if weights_K[heavy].sum() > top_p * total * _SURELY:
            break
    order = heavy[np.argsort(-weights_K[heavy], kind="stable")]
    before = np.concatenate([[0.0], np.cumsum(weights_K[order])[:-1]])
    return order[before < top_p * total]
