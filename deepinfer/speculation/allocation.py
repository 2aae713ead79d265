"""Which drafts a budget checks: the likeliest to survive, by this step's confidences.

D decoding sequences · K drafts of each at most.

A draft survives if it and all before it are accepted. Survival only falls along a sequence, so the best places of all
sequences together are always a prefix of each. Whether a place is handed out depends on the places ranked before it, and
those of its own sequence are the earlier ones: never on the token drafted there, nor on anything drafted after it. With a
budget that does not look at this step either, checking so leaves the law of the output as it is (rejection mode); a budget
searched over this step's confidences would not. Source: the DSpark paper (arXiv 2607.05147).
"""

import numpy as np

_LAST = np.int64(0xFFFFFFFF)


def survival(confidence_DK: np.ndarray) -> np.ndarray:
    """Chance that each draft and all before it are accepted, float32 [D, K], from conditional confidences [D, K].

    Confidences are cut to [0, 1]; NaN counts as 0, so that it never wins a place.
    """
    certain = confidence_DK.astype(np.float32, copy=False)
    kept = np.where(certain > 0, np.minimum(certain, np.float32(1)), np.float32(0))  # NaN > 0 is false
    return np.multiply.accumulate(kept, axis=1)


def allocate(confidence_DK: np.ndarray, available_D: np.ndarray, budget: int) -> np.ndarray:
    """How many drafts each sequence has checked, int64 [D]; they sum to min(budget, sum of `available_D`).

    `confidence_DK` float32: of this step's drafts, conditional on those before; `available_D` int64: how many each sequence
    has, 0 … K. The places with the highest survival win; of equal ones the shallower, then the lower sequence: equal
    sequences share evenly, and a place is only ever behind the earlier ones of its sequence.
    """
    assert budget >= 0
    num_sequences, depth = confidence_DK.shape
    if budget >= int(available_D.sum()):
        return available_D.astype(np.int64)
    if budget == 0:
        return np.zeros(num_sequences, dtype=np.int64)
    # Non-negative floats order as their bits do: rank and tie-break fit one integer, all different.
    order_DK = survival(confidence_DK).view(np.int32).astype(np.int64) << 32
    order_DK |= _LAST - (np.arange(depth) * num_sequences + np.arange(num_sequences)[:, None])
    order_DK[np.arange(depth) >= available_D[:, None]] = -1
    flat = order_DK.ravel()
    least = np.partition(flat, flat.size - budget)[flat.size - budget]
    return (order_DK >= least).sum(axis=1, dtype=np.int64)
