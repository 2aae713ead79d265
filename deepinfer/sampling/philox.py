"""Random numbers as a pure function of (seed, position, token id, stream): Philox4x32-10 counters, never a stream.

Key = the 64-bit seed of a sequence; counter = (position low, position high, token counter, stream). Token t draws its 16 high
bits from piece t % 8 (of 16 bits) of the block at token counter t // 8, and its 36 low bits from half t % 2 of the block at
t // 2 + FINE. So eight neighbours share a block, and whoever only looks for the largest number needs the low bits of few.
Nothing is stored between steps, and no number depends on the batch row, on the slice of the vocabulary, or on how a position
was reached.

Shapes: R rows · K token ids of a row. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np

TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)  # streams
STREAM_BITS = 2  # what is left of a counter's last word may number draws at the same position
FINE = np.uint64(1 << 31)  # token counters from here on are those of low bits; token ids stay below

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: tuple[np.ndarray, ...], key: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Philox4x32-10 of four counter words and two key words, each a uint64 array holding 32 bits; arrays broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product2 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product2 >> _SHIFT) ^ c1 ^ k0,
            product2 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + np.uint64(_WEYL[0])) & _LOW
        k1 = (k1 + np.uint64(_WEYL[1])) & _LOW
    return c0, c1, c2, c3


def words(seeds: np.ndarray, positions: np.ndarray, counters: np.ndarray, stream: int) -> tuple[np.ndarray, ...]:
    """The four 32-bit words (as uint64) at each (seed, position, token counter); the three arrays broadcast."""
    seeds = np.asarray(seeds, np.uint64)
    positions = np.asarray(positions, np.uint64)
    counters = np.asarray(counters, np.uint64) & _LOW
    counter = (positions & _LOW, positions >> _SHIFT, counters, np.asarray(stream, np.uint64))
    return philox4x32(counter, (seeds & _LOW, seeds >> _SHIFT))


def bits(seeds: np.ndarray, positions: np.ndarray, token_ids: np.ndarray, stream: int = TARGET) -> np.ndarray:
    """The 52 random bits (as uint64) at each (seed, position, token id). Arguments broadcast."""
    ids = np.asarray(token_ids, np.uint64)
    coarse = words(seeds, positions, ids >> np.uint64(3), stream)
    fine = words(seeds, positions, ids >> np.uint64(1) | FINE, stream)
    piece, odd = ids & np.uint64(7), ids & np.uint64(1)
    word = np.choose((piece >> np.uint64(1)).astype(np.intp), coarse)
    high = word >> (np.uint64(16) * odd) & np.uint64(0xFFFF)
    first, second = (np.where(odd == 0, fine[i], fine[i + 2]) for i in (0, 1))
    return high << np.uint64(36) | first << np.uint64(4) | second >> np.uint64(28)


def uniform(seeds: np.ndarray, positions: np.ndarray, token_ids: np.ndarray, stream: int = TARGET) -> np.ndarray:
    """float64 in the open interval (0, 1): odd multiples of 2**-53, so neither end is ever met. Arguments broadcast."""
    return (2.0 * bits(seeds, positions, token_ids, stream).astype(np.float64) + 1.0) * 2.0**-53  # exact: 52 bits


def gumbel_of(uniform_: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise from an array of uniforms in (0, 1); every value is finite, between -3.61 and 36.74."""
    noise = np.log(uniform_)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)
