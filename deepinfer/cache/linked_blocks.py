"""Owners, free stack and order of last use of cache blocks, in arrays; compiled. N blocks, and number N as a ring's anchor.

Unowned cached blocks form a ring around the anchor: `newer[N]` is the least recently used, `older[N]` the most recent.
`counts` is [free, idle]: on the stack, and in the ring.
"""

import numba
import numpy as np

FREE, IDLE = 0, 1  # entries of `counts`


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _unlink(older: np.ndarray, newer: np.ndarray, block: int) -> None:
    newer[older[block]] = newer[block]
    older[newer[block]] = older[block]


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _link_newest(older: np.ndarray, newer: np.ndarray, block: int) -> None:
    anchor = len(older) - 1
    older[block], newer[block] = older[anchor], anchor
    newer[older[anchor]] = block
    older[anchor] = block


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pop(
    count: int,
    owners: np.ndarray,
    cached: np.ndarray,
    stack: np.ndarray,
    older: np.ndarray,
    newer: np.ndarray,
    counts: np.ndarray,
    out: np.ndarray,
) -> int:
    """`count` blocks into `out`, free ones first, then the least recently used; returns how many of them were free."""
    anchor, from_stack = len(older) - 1, min(count, counts[FREE])
    for i in range(from_stack):
        counts[FREE] -= 1
        out[i] = stack[counts[FREE]]
        owners[out[i]] = 1
    for i in range(from_stack, count):
        block = newer[anchor]
        _unlink(older, newer, block)
        cached[block] = False
        owners[block] = 1
        out[i] = block
    counts[IDLE] -= count - from_stack
    return from_stack


@numba.njit(cache=True, nogil=True, error_model="numpy")
def pin(
    ids: np.ndarray, owners: np.ndarray, cached: np.ndarray, older: np.ndarray, newer: np.ndarray, counts: np.ndarray
) -> int:
    """One more owner each; returns how many were neither owned nor cached."""
    wrong = 0
    for block in ids:
        if owners[block] == 0:
            if not cached[block]:
                wrong += 1
                continue
            _unlink(older, newer, block)
            counts[IDLE] -= 1
        owners[block] += 1
    return wrong


@numba.njit(cache=True, nogil=True, error_model="numpy")
def unpin(
    ids: np.ndarray,
    owners: np.ndarray,
    cached: np.ndarray,
    stack: np.ndarray,
    older: np.ndarray,
    newer: np.ndarray,
    counts: np.ndarray,
    freed: np.ndarray,
) -> int:
    """One owner fewer each, last first, so that a sequence's end is older than its beginning. Returns how many are free now and
    puts them into `freed`, in the order of `ids` from its end; or -1, and changes nothing, where one had no owner."""
    for block in ids:
        if owners[block] == 0:
            return -1
    first = len(freed)
    for i in range(len(ids) - 1, -1, -1):
        block = ids[i]
        owners[block] -= 1
        if owners[block] > 0:
            continue
        if cached[block]:
            _link_newest(older, newer, block)
            counts[IDLE] += 1
        else:
            stack[counts[FREE]] = block
            counts[FREE] += 1
            first -= 1
            freed[first] = block
    return len(freed) - first


@numba.njit(cache=True, nogil=True, error_model="numpy")
def uncache(
    ids: np.ndarray,
    owners: np.ndarray,
    cached: np.ndarray,
    stack: np.ndarray,
    older: np.ndarray,
    newer: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Cached blocks that shall serve nobody any more; unowned ones are free at once."""
    for block in ids:
        cached[block] = False
        if owners[block] == 0:
            _unlink(older, newer, block)
            counts[IDLE] -= 1
            stack[counts[FREE]] = block
            counts[FREE] += 1
