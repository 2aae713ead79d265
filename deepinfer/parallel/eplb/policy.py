"""Placements for measured loads: as little as possible summed over steps of the load of the most loaded rank.

A step waits for its slowest rank, so that peaks count step by step; averages hide them. Three stages a layer, all in integers:
copies of the experts that make peaks, a packing heaviest first, and swaps of two slots while they help. Every rank computes
the placement for itself from the same loads and gets the same bits.

Legend: W steps of a window · K condensed steps · L layers · E experts · R ranks · P slots of all ranks.
"""

from __future__ import annotations

import numba
import numpy as np

from deepinfer.parallel.eplb.copies import choose_copies
from deepinfer.parallel.eplb.matching import match_slots
from deepinfer.parallel.eplb.packing import pack
from deepinfer.parallel.eplb.swaps import swap_slots

MOST_STEPS = 56  # longer windows are condensed to as many: runs of neighbouring steps are added up
MOST_SUM = 1 << 30  # of the loads of all steps of a layer, so that no sum of peaks leaves 32 bits
WORK = 1_200_000  # sums that swaps of one layer may cost: about 0.2 ms
SLACK = 2e-3  # of the load of a rank: what a copy may cost for staying where it is


def balance(
    load_WLE: np.ndarray,
    num_ranks: int,
    redundant: int,
    *,
    keep_LP: np.ndarray | None = None,
    min_gain: float = 0.0,
    slack: float = SLACK,
    work: int = WORK,
    most_steps: int = MOST_STEPS,
) -> np.ndarray:
    """The expert in every slot, int64 [L, E + redundant], rank by rank.

    `load_WLE`: tokens of each expert, int64. `keep_LP` is the placement in use: a layer changes only where its summed peaks
    fall by more than the share `min_gain`; experts stay on ranks that have them where that costs at most `slack` of a rank's
    load, and ranks and slots are named so that few move. Raises ValueError when slots do not divide over the ranks.
    """
    steps, layers, experts = load_WLE.shape
    slots = experts + redundant
    if slots % num_ranks:
        raise ValueError(f"{experts} experts + {redundant} copies do not divide over {num_ranks} ranks")
    load_WLE = np.ascontiguousarray(load_WLE, np.int64)  # one kind of array: functions are compiled once
    expert_LP = np.empty((layers, slots), np.int64)
    for layer in range(layers):
        keep_P = np.ascontiguousarray(keep_LP[layer], np.int64) if keep_LP is not None else np.empty(0, np.int64)
        load_KE = _condensed(load_WLE, layer, min(steps, most_steps))
        expert_LP[layer] = _place_layer(load_KE, num_ranks, redundant, keep_P, min_gain, slack, work)
    return expert_LP


def peak_and_mean(load_WLE: np.ndarray, expert_LP: np.ndarray, num_ranks: int) -> tuple[float, float]:
    """Σ over steps and layers of the load of the most loaded rank, and of a rank on average [tokens]."""
    load_WLE = np.ascontiguousarray(load_WLE, np.int64)
    peak = sum(
        summed_peaks(_condensed(load_WLE, layer, len(load_WLE)), expert_P, num_ranks)
        for layer, expert_P in enumerate(expert_LP)
    )
    return float(peak), float(load_WLE.sum() / num_ranks)


def rank_loads(load_WLE: np.ndarray, expert_LP: np.ndarray, num_ranks: int) -> np.ndarray:
    """[R]: Σ over steps and layers of the load of each rank [tokens]; the copies of an expert share its load evenly."""
    total_R = np.zeros(num_ranks)
    for load_E, expert_P in zip(load_WLE.sum(0), expert_LP, strict=True):
        copies_E = np.bincount(expert_P, minlength=len(load_E))
        total_R += (load_E[expert_P] / copies_E[expert_P]).reshape(num_ranks, -1).sum(1)
    return total_R


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _condensed(load_WLE: np.ndarray, layer: int, most_steps: int) -> np.ndarray:
    """[K, E] of one layer: runs of neighbouring steps, as even as they can be, added up. Bursts last longer than a step."""
    steps, _, experts = load_WLE.shape
    load_KE = np.zeros((most_steps, experts), np.int64)
    for w in range(steps):
        k = w * most_steps // steps
        for e in range(experts):
            load_KE[k, e] += load_WLE[w, layer, e]
    return load_KE


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _place_layer(
    load_KE: np.ndarray, ranks: int, spare: int, keep_P: np.ndarray, min_gain: float, slack: float, work: int
) -> np.ndarray:
    experts = load_KE.shape[1]
    scaled_KE = _scaled(load_KE)
    count_E = choose_copies(scaled_KE, spare, ranks)
    each_E = 1.0 / count_E
    for k in range(len(scaled_KE)):
        for e in range(experts):
            scaled_KE[k, e] = np.int32(scaled_KE[k, e] * each_E[e])
    size = (experts + spare) // ranks
    holds_ER = np.zeros((experts, ranks), np.bool_)
    for p in range(len(keep_P)):
        holds_ER[keep_P[p], p // size] = True
    allowed = int(slack * scaled_KE.sum() / ranks) if len(keep_P) else 0
    expert_P = pack(scaled_KE.T.copy(), count_E, holds_ER, allowed)
    if size > 1:
        swap_slots(scaled_KE, expert_P, ranks, work)
    if not len(keep_P):
        return expert_P
    expert_P = match_slots(expert_P, keep_P, experts, ranks)
    before, after = summed_peaks(load_KE, keep_P, ranks), summed_peaks(load_KE, expert_P, ranks)
    return expert_P if after < before * (1.0 - min_gain) else keep_P


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _scaled(load_KE: np.ndarray) -> np.ndarray:
    """Loads as int32 whose sum stays below MOST_SUM, as precise as that allows."""
    steps, experts = load_KE.shape
    total = np.int64(0)
    for k in range(steps):
        for e in range(experts):
            total += load_KE[k, e]
    factor = MOST_SUM / max(total, np.int64(1))
    scaled_KE = np.empty((steps, experts), np.int32)
    for k in range(steps):
        for e in range(experts):
            scaled_KE[k, e] = np.int32(np.float64(load_KE[k, e]) * factor)  # one rounding: the same on all machines
    return scaled_KE


@numba.njit(cache=True, nogil=True, error_model="numpy")
def summed_peaks(load_KE: np.ndarray, expert_P: np.ndarray, ranks: int) -> float:
    """Σ over steps of the largest load of a rank [tokens]; the copies of an expert share its load evenly."""
    steps, experts = load_KE.shape
    size = len(expert_P) // ranks
    count_E = np.zeros(experts, np.int64)
    for expert in expert_P:
        count_E[expert] += 1
    summed = 0.0
    for k in range(steps):
        peak = 0.0
        for r in range(ranks):
            load = 0.0
            for p in range(r * size, r * size + size):
                load += load_KE[k, expert_P[p]] / count_E[expert_P[p]]
            peak = max(peak, load)
        summed += peak
    return summed
