"""Open addressing over arrays, compiled: digest of a block → number of the block.

A slot of `table_T` is int64: -1, or a tag of 31 bits over a block number of 32. The tag is the digest's low bits and says where
the search begins, so that a removal can close its gap (what follows moves up) without reading a digest, and no tombstones pile
up. A tag only sorts out most of the others: what is found has the whole digest.
"""

import numba
import numpy as np

EMPTY = -1
TAG_BITS = 31
TAG_MASK = (1 << TAG_BITS) - 1
BLOCK_MASK = (1 << 32) - 1
AHEAD = 16  # searches begun together, so that their cache misses overlap


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _home(tag: int, size: int) -> int:
    return (tag * size) >> TAG_BITS


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _tag(digests_n4: np.ndarray, i: int, tag_mask: int) -> int:
    return int(np.int64(digests_n4[i, 0]) & tag_mask)


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _same(names_N4: np.ndarray, block: int, digests_n4: np.ndarray, i: int) -> bool:
    return (
        names_N4[block, 0] == digests_n4[i, 0]
        and names_N4[block, 1] == digests_n4[i, 1]
        and names_N4[block, 2] == digests_n4[i, 2]
        and names_N4[block, 3] == digests_n4[i, 3]
    )


@numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _next_of_tag(table_T: np.ndarray, slot: int, tag: int) -> int:
    """The first slot from `slot` on that is empty or has this tag."""
    while table_T[slot] >= 0 and table_T[slot] >> 32 != tag:
        slot = slot + 1 if slot + 1 < len(table_T) else 0
    return slot


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _search(table_T: np.ndarray, names_N4: np.ndarray, digests_n4: np.ndarray, i: int, slot: int, tag: int) -> int:
    """The slot of digest i, or the empty one at which the search for it ends."""
    while True:
        slot = _next_of_tag(table_T, slot, tag)
        if table_T[slot] < 0 or _same(names_N4, table_T[slot] & BLOCK_MASK, digests_n4, i):
            return slot
        slot = slot + 1 if slot + 1 < len(table_T) else 0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _search_some(
    table_T: np.ndarray, names_N4: np.ndarray, digests_n4: np.ndarray, tag_mask: int, slots_A: np.ndarray
) -> None:
    """`slots_A`: as `_search`, of at most AHEAD digests. Three passes, each of loads that do not wait for one another."""
    size, count = len(table_T), len(digests_n4)
    heads_A = np.empty(AHEAD, dtype=np.int64)
    for i in range(count):
        slots_A[i] = _home(_tag(digests_n4, i, tag_mask), size)
        heads_A[i] = table_T[slots_A[i]]
    for i in range(count):
        tag = _tag(digests_n4, i, tag_mask)
        if heads_A[i] >= 0 and heads_A[i] >> 32 != tag:
            slots_A[i] = _next_of_tag(table_T, slots_A[i], tag)
            heads_A[i] = table_T[slots_A[i]]
        if heads_A[i] >= 0:
            heads_A[i] = -2 if _same(names_N4, heads_A[i] & BLOCK_MASK, digests_n4, i) else 0
    for i in range(count):
        if heads_A[i] == 0:  # another digest of the same tag
            slots_A[i] = _search(table_T, names_N4, digests_n4, i, slots_A[i], _tag(digests_n4, i, tag_mask))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def find_run(
    table_T: np.ndarray, names_N4: np.ndarray, digests_n4: np.ndarray, tag_mask: int, found_n: np.ndarray
) -> int:
    """Blocks of the first digests, up to the first that is not there; returns how many."""
    slots_A = np.empty(AHEAD, dtype=np.int64)
    for start in range(0, len(digests_n4), AHEAD):
        end = min(start + AHEAD, len(digests_n4))
        _search_some(table_T, names_N4, digests_n4[start:end], tag_mask, slots_A)
        for i in range(start, end):
            entry = table_T[slots_A[i - start]]
            if entry < 0:
                return i
            found_n[i] = entry & BLOCK_MASK
    return len(digests_n4)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def insert_each(
    table_T: np.ndarray,
    names_N4: np.ndarray,
    digests_n4: np.ndarray,
    blocks_n: np.ndarray,
    tag_mask: int,
    holders_n: np.ndarray,
) -> int:
    """Enter every block under its digest unless another holds it; `holders_n` gets the holder. Returns how many are new."""
    added = 0
    slots_A = np.empty(AHEAD, dtype=np.int64)
    for start in range(0, len(digests_n4), AHEAD):
        end = min(start + AHEAD, len(digests_n4))
        _search_some(table_T, names_N4, digests_n4[start:end], tag_mask, slots_A)
        for i in range(start, end):
            tag = _tag(digests_n4, i, tag_mask)
            slot = _search(table_T, names_N4, digests_n4, i, slots_A[i - start], tag)  # an earlier i may have taken it
            if table_T[slot] >= 0:
                holders_n[i] = table_T[slot] & BLOCK_MASK
                continue
            table_T[slot] = tag << 32 | blocks_n[i]
            names_N4[blocks_n[i]] = digests_n4[i]
            holders_n[i] = blocks_n[i]
            added += 1
    return added


@numba.njit(cache=True, nogil=True, error_model="numpy")
def remove_each(table_T: np.ndarray, names_N4: np.ndarray, blocks_n: np.ndarray, tag_mask: int) -> int:
    """Take blocks out; what stands behind a gap moves up. Returns how many were not there."""
    size, absent = len(table_T), 0
    slots_A = np.empty(AHEAD, dtype=np.int64)
    heads_A = np.empty(AHEAD, dtype=np.int64)
    for start in range(0, len(blocks_n), AHEAD):
        count = min(AHEAD, len(blocks_n) - start)
        for i in range(count):
            slots_A[i] = _tag(names_N4, blocks_n[start + i], tag_mask)
        for i in range(count):
            heads_A[i] = table_T[_home(slots_A[i], size)]
        for i in range(count):
            wanted = slots_A[i] << 32 | blocks_n[start + i]
            hole = _home(slots_A[i], size)
            if heads_A[i] != wanted or table_T[hole] != wanted:
                while table_T[hole] != wanted and table_T[hole] >= 0:
                    hole = hole + 1 if hole + 1 < size else 0
            if table_T[hole] < 0:
                absent += 1
            else:
                _close(table_T, hole)
    return absent


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _close(table_T: np.ndarray, hole: int) -> None:
    """Empty a slot, and move into it whatever would no longer be found across it."""
    size, slot = len(table_T), hole
    while True:
        slot = slot + 1 if slot + 1 < size else 0
        entry = table_T[slot]
        if entry < 0:
            break
        home = _home(entry >> 32, size)
        behind = slot - home if slot >= home else slot - home + size
        gap = slot - hole if slot >= hole else slot - hole + size
        if behind >= gap:
            table_T[hole] = entry
            hole = slot
    table_T[hole] = EMPTY
