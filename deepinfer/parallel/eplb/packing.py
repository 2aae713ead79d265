"""Which rank gets which copies: heaviest first, each to the rank where it raises the summed peaks least.

Legend: K steps · E experts · R ranks · P slots. Loads are int32 and small enough that a sum over steps fits, so that
inner loops are vectors of 32-bit integers, and all ranks compute the same bits.
"""

import numba
import numpy as np

NOBODY = np.int64(1) << 62


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pack(share_EK: np.ndarray, count_E: np.ndarray, holds_ER: np.ndarray, slack: int) -> np.ndarray:
    """The expert in every slot, int64 [P], rank by rank.

    `share_EK`: load of one copy. `holds_ER`: experts that a rank has now; it keeps one if that costs at most `slack` more than
    the best rank would. One rank gets an expert twice only where no other has room.
    """
    experts, ranks = holds_ER.shape
    steps, room = share_EK.shape[1], count_E.sum() // ranks
    load_KR, peak_K = np.zeros((steps, ranks), np.int32), np.zeros(steps, np.int32)
    rise_R, filled_R, total_R = np.empty(ranks, np.int32), np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    gets_ER, expert_P = np.zeros((experts, ranks), np.bool_), np.empty(count_E.sum(), np.int64)
    total_E = np.empty(experts, np.int64)
    for e in range(experts):
        total_E[e] = share_EK[e].sum()
    touched = 0
    for e in np.argsort(-total_E, kind="mergesort"):
        for _ in range(count_E[e]):
            _rises(share_EK[e], load_KR, peak_K, touched, rise_R)
            rank = _cheapest(rise_R, filled_R, total_R, gets_ER[e], holds_ER[e], room, slack)
            expert_P[rank * room + filled_R[rank]] = e
            filled_R[rank] += 1
            total_R[rank] += total_E[e]
            gets_ER[e, rank] = True
            touched = max(touched, rank + 1)
            for k in range(steps):
                load_KR[k, rank] += share_EK[e, k]
                peak_K[k] = max(peak_K[k], load_KR[k, rank])
    return expert_P


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _rises(share_K: np.ndarray, load_KR: np.ndarray, peak_K: np.ndarray, touched: int, rise_R: np.ndarray) -> None:
    """By how much each rank would raise the summed peaks. Those from `touched` on are empty, and so alike."""
    steps, ranks = load_KR.shape
    some = min(touched + 1, ranks)
    rise_R[:] = 0
    for k in range(steps):
        if share_K[k] == 0:
            continue
        over = np.int32(share_K[k] - peak_K[k])
        for r in range(some):
            rise_R[r] = np.int32(rise_R[r] + max(np.int32(load_KR[k, r] + over), np.int32(0)))
    rise_R[some:] = rise_R[some - 1]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _cheapest(
    rise_R: np.ndarray,
    filled_R: np.ndarray,
    total_R: np.ndarray,
    gets_R: np.ndarray,
    holds_R: np.ndarray,
    room: int,
    slack: int,
) -> int:
    """The rank with the least rise, then the least load, then the lowest; one that holds the expert may cost `slack` more."""
    best, least = -1, NOBODY
    stays, stay_least = -1, NOBODY
    spare = -1
    for r in range(len(rise_R)):
        if filled_R[r] == room:
            continue
        if gets_R[r]:
            spare = r if spare < 0 else spare
            continue
        if rise_R[r] < least or (rise_R[r] == least and total_R[r] < total_R[best]):
            best, least = r, np.int64(rise_R[r])
        if holds_R[r] and (rise_R[r] < stay_least or (rise_R[r] == stay_least and total_R[r] < total_R[stays])):
            stays, stay_least = r, np.int64(rise_R[r])
    if best < 0:
        return spare
    return stays if stays >= 0 and stay_least <= least + slack else best
