"""Two slots change places while that lowers the summed peaks: what a greedy packing leaves on the table.

One of the two is always on the rank that makes most of the peaks; no other swap lowers them.

Legend: K steps · E experts · R ranks · P slots · S slots of a rank · C candidates. Loads are int32, as in packing.
"""

import numba
import numpy as np

CANDIDATES = 8  # slots of the worst rank that are tried in a round: those that weigh most where it is the peak


@numba.njit(cache=True, nogil=True, error_model="numpy")
def swap_slots(share_KE: np.ndarray, expert_P: np.ndarray, ranks: int, work: int) -> int:
    """Improve `expert_P` in place; returns the number of swaps. `work`: most (slot, slot, step) sums to make."""
    steps, slots = len(share_KE), len(expert_P)
    size = slots // ranks
    share_KP, load_KR = np.empty((steps, slots), np.int32), np.zeros((steps, ranks), np.int32)
    for k in range(steps):
        for r in range(ranks):
            for p in range(r * size, r * size + size):
                share_KP[k, p] = share_KE[k, expert_P[p]]
                load_KR[k, r] += share_KP[k, p]
    rest_KP = np.empty((steps, slots), np.int32)  # load of each slot's rank without it
    for r in range(ranks):
        _set_rest(r, share_KP, load_KR, rest_KP)
    top_K3, barred_R, swaps = np.empty((steps, 3), np.int64), np.zeros(ranks, np.bool_), 0
    while work > 0:
        rank, summed = _worst(load_KR, top_K3, barred_R)
        if rank < 0:
            break
        work -= min(CANDIDATES, size) * slots * steps
        mine, theirs = _best_swap(rank, summed, share_KP, load_KR, rest_KP, top_K3, expert_P)
        barred_R[rank] = mine < 0
        if mine >= 0:
            barred_R[:] = False
            swaps += 1
            _swap(mine, theirs, share_KP, load_KR, rest_KP, expert_P)
    return swaps


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _worst(load_KR: np.ndarray, top_K3: np.ndarray, barred_R: np.ndarray) -> tuple[int, np.int64]:
    """The rank, of those not barred, that rises most above all others, summed over steps (-1: none); and the summed peaks."""
    steps, ranks = load_KR.shape
    above_R, summed = np.zeros(ranks, np.int64), np.int64(0)
    for k in range(steps):
        first, second, third = -1, -1, -1
        for r in range(ranks):
            load = load_KR[k, r]
            if third >= 0 and load <= load_KR[k, third]:
                continue
            if first < 0 or load > load_KR[k, first]:
                first, second, third = r, first, second
            elif second < 0 or load > load_KR[k, second]:
                second, third = r, second
            else:
                third = r
        top_K3[k, 0], top_K3[k, 1], top_K3[k, 2] = first, second, third
        summed += load_KR[k, first]
        above_R[first] += load_KR[k, first] - load_KR[k, second]
    worst = -1
    for r in range(ranks):
        if not barred_R[r] and above_R[r] > 0 and (worst < 0 or above_R[r] > above_R[worst]):
            worst = r
    return worst, summed


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _best_swap(
    rank: int,
    summed: np.int64,
    share_KP: np.ndarray,
    load_KR: np.ndarray,
    rest_KP: np.ndarray,
    top_K3: np.ndarray,
    expert_P: np.ndarray,
) -> tuple[int, int]:
    """The pair of slots, the first on `rank`, whose swap leaves the least summed peaks; (-1, -1) where none lowers them."""
    steps, slots = share_KP.shape
    size = slots // load_KR.shape[1]
    mine_C = _heaviest(rank, size, share_KP, top_K3)
    peaks_CP = np.zeros((len(mine_C), slots), np.int32)
    for k in range(steps):
        share_P, rest_P = share_KP[k], rest_KP[k]
        start, base, base_without = _others(rank, load_KR[k], top_K3[k])
        for c in range(len(mine_C)):
            slot, peaks_P = mine_C[c], peaks_CP[c]
            _add_peaks(peaks_P, share_P, rest_P, rest_P[slot], share_P[slot], base)
            for p in range(start * size, start * size + size):
                pair = max(np.int32(rest_P[slot] + share_P[p]), np.int32(rest_P[p] + share_P[slot]))
                peaks_P[p] = np.int32(peaks_P[p] + np.int32(max(pair, base_without) - max(pair, base)))
    least, mine, theirs = summed, -1, -1
    for c in range(len(mine_C)):
        for p in range(slots):
            if peaks_CP[c, p] < least and p // size != rank and _may_swap(expert_P, mine_C[c], p, size):
                least, mine, theirs = np.int64(peaks_CP[c, p]), mine_C[c], p
    return mine, theirs


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _add_peaks(
    peaks_P: np.ndarray, share_P: np.ndarray, rest_P: np.ndarray, own: np.int32, moved: np.int32, base: np.int32
) -> None:
    """One step's peak if a slot of load `moved`, whose rank has `own` without it, changed places with each other slot."""
    for p in range(len(peaks_P)):
        here, there = np.int32(own + share_P[p]), np.int32(rest_P[p] + moved)
        peaks_P[p] = np.int32(peaks_P[p] + max(max(here, there), base))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _others(rank: int, load_R: np.ndarray, top_3: np.ndarray) -> tuple[int, np.int32, np.int32]:
    """Of one step: the heaviest rank but `rank`, its load, and the load of the one after it (0 where there is none)."""
    at = 1 if top_3[0] == rank else 0
    after = at + 1 if top_3[at + 1] != rank else at + 2
    last = load_R[top_3[after]] if after < 3 and top_3[after] >= 0 else np.int32(0)
    return top_3[at], load_R[top_3[at]], last


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _heaviest(rank: int, size: int, share_KP: np.ndarray, top_K3: np.ndarray) -> np.ndarray:
    """Slots of `rank` that weigh most in the steps where it is the peak."""
    weight_S = np.zeros(size, np.int64)
    for k in range(len(top_K3)):
        if top_K3[k, 0] == rank:
            for s in range(size):
                weight_S[s] += share_KP[k, rank * size + s]
    return rank * size + np.argsort(-weight_S, kind="mergesort")[:CANDIDATES]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _may_swap(expert_P: np.ndarray, one: int, other: int, size: int) -> bool:
    """Whether neither rank would hold an expert twice."""
    for slot, guest in ((one, expert_P[other]), (other, expert_P[one])):
        start = slot // size * size
        for p in range(start, start + size):
            if expert_P[p] == guest:
                return False
    return True


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _swap(
    one: int, other: int, share_KP: np.ndarray, load_KR: np.ndarray, rest_KP: np.ndarray, expert_P: np.ndarray
) -> None:
    steps, ranks = load_KR.shape
    size = len(expert_P) // ranks
    expert_P[one], expert_P[other] = expert_P[other], expert_P[one]
    for k in range(steps):
        less = share_KP[k, one] - share_KP[k, other]
        load_KR[k, one // size] -= less
        load_KR[k, other // size] += less
        share_KP[k, one], share_KP[k, other] = share_KP[k, other], share_KP[k, one]
    _set_rest(one // size, share_KP, load_KR, rest_KP)
    _set_rest(other // size, share_KP, load_KR, rest_KP)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _set_rest(rank: int, share_KP: np.ndarray, load_KR: np.ndarray, rest_KP: np.ndarray) -> None:
    steps, ranks = load_KR.shape
    size = share_KP.shape[1] // ranks
    for k in range(steps):
        for p in range(rank * size, rank * size + size):
            rest_KP[k, p] = load_KR[k, rank] - share_KP[k, p]
