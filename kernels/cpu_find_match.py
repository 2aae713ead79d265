"""The longest run of newest tokens that stood in a sequence before, and what followed it there.

Tokens are compared with the newest ones in strips whose length the compiler knows, so that the scan of a text without a match
runs at the speed of memory. N slots · L tokens · S sequences · K proposals.
"""

import numba
import numpy as np

STRIP = 64


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _any_equal(strip: np.ndarray, before: np.ndarray, token: int, previous: int) -> bool:
    found = 0
    for i in range(STRIP):
        found += (strip[i] == token) & (before[i] == previous)
    return found > 0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _longest(row: np.ndarray, first: int, newest: int, least: int, most: int) -> tuple[int, int]:
    """(length, last place) of the longest match of at most `most` tokens; of equally long ones the newest.

    Where one token is no match, two are looked for at once: few places have both.
    """
    gap = 1 if least > 1 else 0
    length, place = 0, newest
    end, begin = newest, first + gap  # places from `end` on are done
    while end > begin:
        start = max(begin, end - STRIP)
        token, previous = row[newest], row[newest - gap]
        if end - start == STRIP and not _any_equal(row[start:end], row[start - gap : end - gap], token, previous):
            end = start
            continue
        for at in range(end - 1, start - 1, -1):
            if row[at] == token and row[at - gap] == previous:
                same = 1 + gap
                while same < most and at - same >= first and row[at - same] == row[newest - same]:
                    same += 1
                if same > length:
                    length, place = same, at
                    if length == most:
                        return length, place
        end = start
    return length, place


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _propose(tokens_NL, slots, first, num_tokens, least, most, found_S, out_SK):  # type: ignore[no-untyped-def]
    for s in range(len(slots)):
        row, newest = tokens_NL[slots[s]], first + num_tokens[s] - 1
        length, place = _longest(row, first, newest, least, most)
        if length >= least:
            found_S[s] = length
            for k in range(out_SK.shape[1]):
                out_SK[s, k] = row[place + 1 + k % (newest - place)]


def propose(
    tokens_NL: np.ndarray, slots: np.ndarray, pad: int, num_tokens: np.ndarray, *, least: int, most: int, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """(match lengths int64 [S], proposals int64 [S, depth]); 0 and -1 where fewer than `least` tokens match.

    Token p of a slot is tokens_NL[slot, pad + p]; `num_tokens` [S] are there, one at least. A match that ends less than `depth`
    tokens before the end is continued as the period that it shows.
    """
    found_S, out_SK = np.zeros(len(slots), np.int64), np.full((len(slots), depth), -1, np.int64)
    _propose(tokens_NL, slots, pad, num_tokens, least, most, found_S, out_SK)
    return found_S, out_SK
