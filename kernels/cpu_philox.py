"""Uniforms of Philox4x32-10 on a CPU: bit-equal to `deepinfer.sampling.philox.uniform`, some ten times as fast.

Integer work and exact float64 steps only; the logarithms of the Gumbel stay with NumPy, so that both ways to the noise share
them. Loops are laid so that the compiler makes vectors of them. R rows · K token ids · V vocabulary · X pairs of tokens.
"""

import numba
import numpy as np

_CHUNK = 1024  # pairs of tokens that are drawn at a time: they stay in a core's first cache


@numba.njit(inline="always")
def _block(seed, position, counter, stream):  # type: ignore[no-untyped-def]
    """The four words at a counter."""
    low, s32 = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = position & low, position >> s32, counter, stream
    k0, k1 = seed & low, seed >> s32
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p2 = np.uint64(0xCD9E8D57) * c2
        c0 = (p2 >> s32) ^ c1 ^ k0
        c1 = p2 & low
        c2 = (p0 >> s32) ^ c3 ^ k1
        c3 = p0 & low
        k0 = (k0 + np.uint64(0x9E3779B9)) & low
        k1 = (k1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3


@numba.njit(inline="always")
def _either(second, x, y):  # type: ignore[no-untyped-def]
    """x where `second` is 0, y where it is 1, without a branch."""
    return x ^ (x ^ y) & (np.uint64(0) - second)


@numba.njit(inline="always")
def _uniform(high, first, second):  # type: ignore[no-untyped-def]
    """From 16 high bits and the two words that hold the low ones."""
    bits = high << np.uint64(36) | first << np.uint64(4) | second >> np.uint64(28)
    return (2.0 * np.float64(bits) + 1.0) * 2.0**-53


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _fill(seed: np.uint64, position: np.uint64, ids_K: np.ndarray, stream: np.uint64, out_K: np.ndarray) -> None:
    high_K = np.empty(len(ids_K), np.uint64)
    for k in range(len(ids_K)):
        c0, c1, c2, c3 = _block(seed, position, ids_K[k] >> np.uint64(3), stream)
        piece = ids_K[k] & np.uint64(7)
        front, back = c1 << np.uint64(32) | c0, c3 << np.uint64(32) | c2
        half = _either(piece >> np.uint64(2), front, back)
        high_K[k] = half >> ((piece & np.uint64(3)) << np.uint64(4)) & np.uint64(0xFFFF)
    for k in range(len(ids_K)):
        c0, c1, c2, c3 = _block(seed, position, ids_K[k] >> np.uint64(1) | np.uint64(1 << 31), stream)
        odd = ids_K[k] & np.uint64(1)
        out_K[k] = _uniform(high_K[k], _either(odd, c0, c2), _either(odd, c1, c3))


@numba.njit(nogil=True, error_model="numpy")
def _high_words(seed, position, first, stream, words_4G, words_X):  # type: ignore[no-untyped-def]
    """Word i % 4 of block first + i // 4 for each pair i: the high bits of its two tokens."""
    for g in range(words_4G.shape[1]):
        c0, c1, c2, c3 = _block(seed, position, first + np.uint64(g), stream)
        words_4G[0, g] = c0
        words_4G[1, g] = c1
        words_4G[2, g] = c2
        words_4G[3, g] = c3
    for g in range(words_4G.shape[1]):
        for q in range(4):
            words_X[4 * g + q] = words_4G[q, g]


@numba.njit(nogil=True, error_model="numpy")
def _pairs(seed, position, first, stream, words_X, even_X, odd_X):  # type: ignore[no-untyped-def]
    for i in range(len(words_X)):
        c0, c1, c2, c3 = _block(seed, position, first + np.uint64(i), stream)
        even_X[i] = _uniform(words_X[i] & np.uint64(0xFFFF), c0, c1)
        odd_X[i] = _uniform(words_X[i] >> np.uint64(16), c2, c3)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _fill_all(seed: np.uint64, position: np.uint64, stream: np.uint64, out_V: np.ndarray) -> None:
    pairs = min(_CHUNK, (len(out_V) + 7) // 8 * 4)
    words_4G, words_X = np.empty((4, pairs // 4), np.uint64), np.empty(pairs, np.uint64)
    even_X, odd_X = np.empty(pairs), np.empty(pairs)
    for start in range(0, len(out_V), 2 * pairs):
        _high_words(seed, position, np.uint64(start >> 3), stream, words_4G, words_X)
        _pairs(seed, position, np.uint64(start >> 1) | np.uint64(1 << 31), stream, words_X, even_X, odd_X)
        left = len(out_V) - start
        for i in range(min(pairs, left // 2)):
            out_V[start + 2 * i] = even_X[i]
            out_V[start + 2 * i + 1] = odd_X[i]
        if left < 2 * pairs and left % 2 == 1:
            out_V[start + left - 1] = even_X[left // 2]


def uniform(seeds_R: np.ndarray, positions_R: np.ndarray, ids_K: np.ndarray, stream: int) -> np.ndarray:
    """float64 [R, K] in (0, 1) at every (seed, position) of a row and every token id. 1-D arrays of whole numbers."""
    assert seeds_R.ndim == positions_R.ndim == ids_K.ndim == 1 and len(seeds_R) == len(positions_R)
    out_RK = np.empty((len(seeds_R), len(ids_K)))
    seeds_R, positions_R, ids_K = (np.ascontiguousarray(a, dtype=np.uint64) for a in (seeds_R, positions_R, ids_K))
    for seed, position, out_K in zip(seeds_R, positions_R, out_RK):
        _fill(seed, position, ids_K, np.uint64(stream), out_K)
    return out_RK


def uniform_of_all(seeds_R: np.ndarray, positions_R: np.ndarray, vocab_size: int, stream: int) -> np.ndarray:
    """The same, float64 [R, V], for every token of the vocabulary: neighbours share their blocks."""
    assert seeds_R.ndim == positions_R.ndim == 1 and len(seeds_R) == len(positions_R)
    out_RV = np.empty((len(seeds_R), vocab_size))
    seeds_R, positions_R = (np.ascontiguousarray(a, dtype=np.uint64) for a in (seeds_R, positions_R))
    for seed, position, out_V in zip(seeds_R, positions_R, out_RV):
        _fill_all(seed, position, np.uint64(stream), out_V)
    return out_RV
