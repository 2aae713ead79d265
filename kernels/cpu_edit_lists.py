"""Lists of tokens whose logits one sequence edits, each token once: kept up to date, and laid out for a step.

A list has its tokens in any order; `place_V` says where each stands, -1 where it does not. Counts are 2 · occurrences in the
answer + 1 where the prompt holds the token. L places of a list · V vocabulary · D drafts · X tokens ruled out.
"""

import numba
import numpy as np


@numba.njit(inline="always")
def _place_of(token, place_V, ids_L, counts_L, biases_L, length):  # type: ignore[no-untyped-def]
    """(where the token stands, length of the list): it joins the list if it is not there."""
    place = place_V[token]
    if place < 0:
        place = length
        place_V[token] = place
        ids_L[place] = token
        counts_L[place] = 0
        biases_L[place] = 0.0
        length += 1
    return place, length


@numba.njit(cache=True, nogil=True, error_model="numpy")
def count(place_V, ids_L, counts_L, biases_L, length, tokens, amount) -> int:  # type: ignore[no-untyped-def]
    """Each token occurs `amount` / 2 times more, or where `amount` is 1 in the prompt; returns the list's length.

    There must be room for all of them.
    """
    for i in range(len(tokens)):
        place, length = _place_of(tokens[i], place_V, ids_L, counts_L, biases_L, length)
        if amount == 1:
            counts_L[place] |= 1
        else:
            counts_L[place] += amount
    return length


@numba.njit(cache=True, nogil=True, error_model="numpy")
def lay_out(  # type: ignore[no-untyped-def]
    place_V,
    ids_L,
    counts_L,
    biases_L,
    length,
    num_rows,
    drafts_D,
    ruled_X,
    ruled_rows_X,
    start,
    out_ids_E,
    out_counts_E,
    out_biases_E,
) -> int:
    """Copies a list of a sequence to the outputs from `start` on, once for each of its rows; returns one copy's length.

    Row d comes behind drafts 0 … d - 1, and `ruled_X` are ruled out in rows `ruled_rows_X`. `out_biases_E` is empty where no
    list has biases and nothing is ruled out. Tokens that are in the list for this step alone leave it again. There must be
    room for all of them.
    """
    known = length
    for i in range(len(drafts_D)):
        _, length = _place_of(drafts_D[i], place_V, ids_L, counts_L, biases_L, length)
    for i in range(len(ruled_X)):
        _, length = _place_of(ruled_X[i], place_V, ids_L, counts_L, biases_L, length)
    for row in range(num_rows):
        at = start + row * length
        for i in range(length):
            out_ids_E[at + i] = ids_L[i]
            out_counts_E[at + i] = counts_L[i]
        for i in range(min(length, len(out_biases_E))):
            out_biases_E[at + i] = biases_L[i]
        for d in range(min(row, len(drafts_D))):
            out_counts_E[at + place_V[drafts_D[d]]] += 2
    for i in range(len(ruled_X)):
        out_biases_E[start + ruled_rows_X[i] * length + place_V[ruled_X[i]]] = -np.inf
    for i in range(known, length):
        place_V[ids_L[i]] = -1
    return length


def compile_all() -> None:
    """Compiles both, or loads what was compiled before, so that no step waits for it."""
    ids_L, counts_L, wide = np.zeros(4, np.int32), np.zeros(4, np.int32), np.zeros(4, np.int64)
    place_V, biases_L = np.full(4, -1, np.int32), np.zeros(4)
    length = count(place_V, ids_L, counts_L, biases_L, 0, wide[:1], 2)
    lists = place_V, ids_L, counts_L, biases_L, length
    lay_out(*lists, 1, wide[:0], wide[:0], wide[:0], 0, np.zeros(4, np.int32), np.zeros(4, np.int32), np.zeros(4))
