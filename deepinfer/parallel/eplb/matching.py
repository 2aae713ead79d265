"""The same groups of experts with other names: ranks and slots are numbered so that as few experts as possible move.

Legend: E experts · R ranks · P slots · S slots of a rank.
"""

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, error_model="numpy")
def match_slots(expert_P: np.ndarray, keep_P: np.ndarray, experts: int, ranks: int) -> np.ndarray:
    """`expert_P` with its ranks, and the slots of each, reordered to agree with `keep_P` in many slots.

    Ranks that have most experts in common are paired first; among equals the lowest.
    """
    size = len(expert_P) // ranks
    common_RR = _common(expert_P, keep_P, experts, ranks)
    group_R, taken_R = np.full(ranks, -1, np.int64), np.zeros(ranks, np.bool_)
    for wanted in range(size, -1, -1):
        for r in range(ranks):
            if group_R[r] >= 0:
                continue
            for group in range(ranks):
                if not taken_R[group] and common_RR[r, group] >= wanted:
                    group_R[r], taken_R[group] = group, True
                    break
    matched_P = np.empty_like(expert_P)
    for r in range(ranks):
        start, group = r * size, group_R[r] * size
        _match_rank(expert_P[group : group + size], keep_P[start : start + size], matched_P[start : start + size])
    return matched_P


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _common(expert_P: np.ndarray, keep_P: np.ndarray, experts: int, ranks: int) -> np.ndarray:
    """[R now, R of the new groups]: experts that both have."""
    size = len(expert_P) // ranks
    has_ER, common_RR = np.zeros((experts, ranks), np.int64), np.zeros((ranks, ranks), np.int64)
    for p in range(len(expert_P)):
        has_ER[expert_P[p], p // size] += 1
    for p in range(len(keep_P)):
        for group in range(ranks):
            common_RR[p // size, group] += has_ER[keep_P[p], group]
    return common_RR


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _match_rank(group_S: np.ndarray, keep_S: np.ndarray, matched_S: np.ndarray) -> None:
    """The experts of a group in the order of slots: those that are there stay, the rest fills up."""
    size = len(group_S)
    used_S, filled_S = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for s in range(size):
        for g in range(size):
            if not used_S[g] and group_S[g] == keep_S[s]:
                matched_S[s], used_S[g], filled_S[s] = group_S[g], True, True
                break
    g = 0
    for s in range(size):
        if not filled_S[s]:
            while used_S[g]:
                g += 1
            matched_S[s], used_S[g] = group_S[g], True
