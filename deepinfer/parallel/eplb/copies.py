"""How many slots each expert gets.

A copy helps a step only where its expert is the heaviest of that step, and then until the second heaviest is reached. So
each spare slot goes to the expert that lowers the summed peaks most; where none does, to the heaviest by load per copy.

Legend: K steps · E experts · H heavy ones. Loads are int32, so that all ranks compute the same bits.
"""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, error_model="numpy")
def choose_copies(load_KE: np.ndarray, num_spare: int, most: int) -> np.ndarray:
    """Slots of every expert, int64 [E]: one each, and `num_spare` more; none has more than `most` unless all have."""
    experts = load_KE.shape[1]
    heavy_H = _heavy(load_KE, num_spare)
    if len(heavy_H) < 2 or len(heavy_H) * (most - 1) < num_spare:
        heavy_H = np.arange(experts)
    count_E = np.ones(experts, np.int64)
    count_E[heavy_H] = _choose(load_KE[:, heavy_H], num_spare, most)
    return count_E


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _heavy(load_KE: np.ndarray, num_spare: int) -> np.ndarray:
    """Experts that may become one of a step's heaviest two. The second heaviest copy is never below the average of all copies
    but those of the heaviest expert; who is below that even without copies is left out."""
    steps, experts = load_KE.shape
    heavy_E = np.zeros(experts, np.bool_)
    for k in range(steps):
        total, largest = np.int64(0), np.int64(0)
        for e in range(experts):
            total += load_KE[k, e]
            largest = max(largest, np.int64(load_KE[k, e]))
        if total == 0:
            continue
        least = (total - largest) // (experts + num_spare) - 1  # less what divisions round away
        for e in range(experts):
            heavy_E[e] |= load_KE[k, e] >= least
    return np.flatnonzero(heavy_E)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _choose(load_KE: np.ndarray, num_spare: int, most: int) -> np.ndarray:
    """As `choose_copies`, of experts of which all may be heavy."""
    steps, experts = load_KE.shape
    count_E, total_E, gain_E = np.ones(experts, np.int64), np.zeros(experts, np.int64), np.zeros(experts, np.int64)
    for k in range(steps):
        for e in range(experts):
            total_E[e] += load_KE[k, e]
    share_KE = load_KE.copy()
    first_K, second_K, gain_K = np.empty(steps, np.int64), np.empty(steps, np.int32), np.empty(steps, np.int64)
    for k in range(steps):
        first_K[k] = np.argmax(share_KE[k])
        second_K[k] = _second(share_KE[k], first_K[k])
        gain_K[k] = _gain(load_KE[k], share_KE[k], count_E, first_K[k], second_K[k])
        gain_E[first_K[k]] += gain_K[k]
    for _ in range(num_spare):
        best = _best(gain_E, total_E, count_E, most)
        count_E[best] += 1
        each = 1.0 / count_E[best]  # one product instead of a division a step; the same bits everywhere all the same
        for k in range(steps):
            before = share_KE[k, best]
            share_KE[k, best] = np.int32(load_KE[k, best] * each)
            if before < second_K[k]:
                continue  # it was neither of the heaviest two
            gain_E[first_K[k]] -= gain_K[k]
            if first_K[k] == best and share_KE[k, best] < second_K[k]:
                first_K[k] = _where(share_KE[k], second_K[k])
                second_K[k] = _second(share_KE[k], first_K[k])
            elif first_K[k] != best:
                second_K[k] = _second(share_KE[k], first_K[k])
            gain_K[k] = _gain(load_KE[k], share_KE[k], count_E, first_K[k], second_K[k])
            gain_E[first_K[k]] += gain_K[k]
    return count_E


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _where(share_E: np.ndarray, share: np.int32) -> np.int64:
    """An expert with this share. No branch, here and below, so that a pass is made of vectors: the time goes to them."""
    found = np.int32(0)
    for e in range(len(share_E)):
        found = max(found, np.int32(e) if share_E[e] == share else np.int32(0))
    return np.int64(found)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _second(share_E: np.ndarray, first: np.int64) -> np.int32:
    """The largest share of the experts other than `first`."""
    largest, without = np.int32(0), np.int32(first)
    for e in range(len(share_E)):
        largest = max(largest, share_E[e] if np.int32(e) != without else np.int32(0))
    return largest


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _gain(load_E: np.ndarray, share_E: np.ndarray, count_E: np.ndarray, first: int, second: int) -> np.int64:
    """What one more copy of the heaviest expert would take off a step's peak."""
    with_copy = np.int64(load_E[first] / (count_E[first] + 1.0))
    return np.int64(share_E[first]) - max(np.int64(second), with_copy)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _best(gain_E: np.ndarray, total_E: np.ndarray, count_E: np.ndarray, most: int) -> int:
    """The largest gain; among equals the largest load per copy (compared by products: exact); among those the lowest."""
    best = -1
    for e in range(len(gain_E)):
        if count_E[e] >= most:
            continue
        heavier = best >= 0 and total_E[e] * count_E[best] > total_E[best] * count_E[e]
        if best < 0 or gain_E[e] > gain_E[best] or (gain_E[e] == gain_E[best] and heavier):
            best = e
    return best if best >= 0 else int(np.argmin(count_E))
