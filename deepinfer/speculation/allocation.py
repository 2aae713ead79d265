"""Which drafts a budget checks: the likeliest to survive, by this step's confidences.

D decoding sequences · K drafts of each at most.

A draft survives if it and all before it are accepted. Survival only falls along a sequence, so the best places of all
sequences together are always a prefix of each. Whether a place is handed out depends on the places ranked before it, and
those of its own sequence are the earlier ones: never on the token drafted there, nor on anything drafted after it. With a
budget that does not look at this step either, checking so leaves the law of the output as it is (rejection mode); a budget
searched over this step's confidences would not. Source: the DSpark paper (arXiv 2607.05147).
"""

import numpy as np


def survival(confidence_DK: np.ndarray) -> np.ndarray:
    """Chance that each draft and all before it are accepted, float32 [D, K], from conditional confidences [D, K].

    Confidences are cut to [0, 1]; NaN counts as 0, so that it never wins a place.
    """
    return _survival_by_depth(confidence_DK).T


def _survival_by_depth(confidence_DK: np.ndarray) -> np.ndarray:
    """As `survival`, but [K, D]."""
    kept_KD = np.array(confidence_DK.T, dtype=np.float32, order="C")
    kept_KD[~(kept_KD > 0)] = 0  # NaN > 0 is false
    np.minimum(kept_KD, 1, out=kept_KD)
    return np.multiply.accumulate(kept_KD, axis=0, out=kept_KD)


def allocate(confidence_DK: np.ndarray, available_D: np.ndarray, budget: int) -> np.ndarray:
    """How many drafts each sequence has checked, int64 [D]; they sum to min(budget, sum of `available_D`).

    `confidence_DK` float32: of this step's drafts, conditional on those before; `available_D` int64: how many each sequence
    has, 0 … K. The places with the highest survival win; of equal ones the shallower, then that of the lower sequence: equal
    sequences share evenly, and a place is only ever behind the earlier ones of its sequence.

    In rejection mode `available_D`, too, must not depend on which tokens were drafted: an illegal draft has to be checked and
    rejected, for if it were cut off, the token in its place would be drawn from another law.
    """
    assert budget >= 0
    num_sequences, depth = confidence_DK.shape
    if budget >= int(available_D.sum()):
        return available_D.astype(np.int64)
    if budget == 0:
        return np.zeros(num_sequences, dtype=np.int64)
    survival_KD = _survival_by_depth(confidence_DK)
    survival_KD[np.arange(depth)[:, None] >= available_D] = -1
    flat = survival_KD.ravel()
    least = np.partition(flat, flat.size - budget)[flat.size - budget]
    wins = flat > least
    equal = np.flatnonzero(flat == least)  # in the order of the places: the shallower first, then by sequence
    wins[equal[: budget - np.count_nonzero(wins)]] = True
    return wins.reshape(depth, num_sequences).sum(axis=0, dtype=np.int64)
