"""Seeds of sequences: 64-bit keys of the counter random numbers.

The same explicit seed in several prompts gives each of them the same key, by design: the counters are (key, position, token),
so an answer can be repeated alone. Without a seed every prompt gets a fresh key, also where prompts share one SamplingParams.
"""

from __future__ import annotations

import secrets

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """A bijection of 64-bit numbers that spreads every bit (the finaliser of SplitMix64; Steele, Lea, Flood 2014)."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sequence_key(seed: int, n_index: int) -> int:
    """Key of answer `n_index` of a request. Answer 0 has the seed itself: it is what n = 1 gives."""
    return seed & _MASK if n_index == 0 else mix64((seed & _MASK) ^ mix64(n_index))


class SeedSource:
    """Seeds for requests that bring none: from the system, or a fixed series where `entropy` is given."""

    def __init__(self, entropy: int | None = None) -> None:
        self._entropy = secrets.randbits(64) if entropy is None else entropy
        self._drawn = 0

    def draw(self) -> int:
        """A seed of 63 bits, different at every call."""
        self._drawn += 1
        return mix64((self._entropy + self._drawn) & _MASK) >> 1
