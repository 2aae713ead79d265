"""Choosing the best entries or blocks of every row: lowest index first among equals, -inf never. float32.

The count-th largest score is found by bisection over the floats' own bits, in the order of their values.
"""

import numba
import numpy as np
import torch
from torch import Tensor

ZERO = np.float32(0)
LOWEST = np.float32(-np.inf)
LOWEST_KEY = -2139095041  # of -inf


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fill_keys(scores: np.ndarray, numbers: np.ndarray, keys: np.ndarray) -> None:
    """Integers in the order of the scores; both zeros get one key. `numbers` is float32 scratch."""
    for j in range(len(scores)):
        numbers[j] = scores[j] + ZERO
    bits = numbers.view(np.int32)
    for j in range(len(scores)):
        keys[j] = bits[j] if bits[j] >= 0 else bits[j] ^ 0x7FFFFFFF


@numba.njit(cache=True, nogil=True, error_model="numpy")
def threshold(keys: np.ndarray, count: int) -> tuple[int, int]:
    """The `count`-th largest key (that of -inf where there are no more), and how many equal to it are among the best."""
    if len(keys) <= count:
        return LOWEST_KEY, 0
    low, high = LOWEST_KEY, (1 << 31) - 1
    while low < high:
        middle = (low + high + 1) >> 1
        reached = 0
        for j in range(len(keys)):
            reached += keys[j] >= middle
        if reached >= count:
            low = middle
        else:
            high = middle - 1
    above = 0
    for j in range(len(keys)):
        above += keys[j] > low
    return low, 0 if low == LOWEST_KEY else count - above


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _entries(scores: np.ndarray, count: int, out: np.ndarray) -> None:
    numbers, keys = np.empty(scores.shape[1], np.float32), np.empty(scores.shape[1], np.int32)
    for t in range(scores.shape[0]):
        fill_keys(scores[t], numbers, keys)
        limit, ties = threshold(keys, count)
        found = 0
        for j in range(len(keys)):
            if keys[j] > limit or (keys[j] == limit and ties > 0):
                ties -= keys[j] == limit
                if scores[t, j] > LOWEST:
                    out[t, found] = j
                    found += 1
        for slot in range(found, count):
            out[t, slot] = -1


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _blocks(scores: np.ndarray, visible: np.ndarray, size: int, count: int, out: np.ndarray) -> None:
    blocks = out.shape[1]
    best, numbers, keys = np.empty(blocks, np.float32), np.empty(blocks, np.float32), np.empty(blocks, np.int32)
    for t in range(scores.shape[0]):
        for b in range(blocks):
            best[b] = LOWEST
            for j in range(b * size, min((b + 1) * size, scores.shape[1])):
                if scores[t, j] > best[b]:
                    best[b] = scores[t, j]
        if visible[t] > 0:
            best[(visible[t] - 1) // size] = np.float32(np.inf)
        fill_keys(best, numbers, keys)
        limit, ties = threshold(keys, count)
        for b in range(blocks):
            taken = keys[b] > limit or (keys[b] == limit and ties > 0)
            ties -= taken and keys[b] == limit
            out[t, b] = taken


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _keep(scores: np.ndarray, candidates: np.ndarray, size: int, out: np.ndarray) -> None:
    for t in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            out[t, j] = scores[t, j] if candidates[t, j // size] else LOWEST


def best_entries(scores_TJ: Tensor, count: int) -> Tensor:
    """The `count` best entries of every row by ascending index, int64 [T, count]; -1 fills up the end."""
    assert scores_TJ.dtype == torch.float32 and scores_TJ.is_contiguous()
    out = torch.empty(scores_TJ.shape[0], count, dtype=torch.int64)
    _entries(scores_TJ.numpy(), count, out.numpy())
    return out


def candidate_blocks(scores_TJ: Tensor, visible_T: Tensor, block_size: int, count: int) -> Tensor:
    """bool [T, C]: the `count` blocks with the best entries, the newest visible entry's block always among them."""
    assert scores_TJ.dtype == torch.float32 and scores_TJ.is_contiguous()
    out = torch.empty(scores_TJ.shape[0], -(-scores_TJ.shape[1] // block_size), dtype=torch.bool)
    _blocks(scores_TJ.numpy(), visible_T.numpy(), block_size, count, out.numpy())
    return out


def keep_candidates(scores_TJ: Tensor, candidates_TC: Tensor, block_size: int) -> Tensor:
    """Scores with everything outside the candidate blocks at -inf."""
    assert scores_TJ.dtype == torch.float32 and scores_TJ.is_contiguous() and candidates_TC.is_contiguous()
    out = torch.empty(scores_TJ.shape)
    _keep(scores_TJ.numpy(), candidates_TC.numpy(), block_size, out.numpy())
    return out
