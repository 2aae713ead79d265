"""How long one kernel takes, from a few figures fitted to its timings: a formula, so that it tells of other sizes too.

    latency = (fixed_s + length_s × length ^ exponent) × turns
    body    = ((bytes ÷ bytes_per_s) ^ power + (FLOPs × waves ÷ flops_per_s) ^ power) ^ (1 ÷ power)

`length` is what a kernel walks through one after another: the entries of a top-k. `turns` is how often it does so where the
chip has no room for all rows at once. `waves` is how much longer a product takes because rows do not fill its tiles, and tiles
not the last round of the chip's multiprocessors: see tile_waves.py. Rows that the kernel before left in the second-level cache
come `cached` times as fast as from memory. A power of 1 adds memory and computation, a high one takes the longer of both.
"""

import math

from msgspec import structs

from deepinfer.plan.frozen import Frozen

CACHE_BYTES = 25e6  # up to which all rows are found in the cache: half of an H200's; from twice as many on none are


class KernelTime(Frozen, frozen=True, kw_only=True):
    """The figures of one kind of kernel on one chip; seconds, bytes and FLOPs."""

    fixed_s: float
    bytes_per_s: float
    flops_per_s: float = math.inf
    power: float = 1.0
    length_s: float = 0.0
    exponent: float = 1.0
    resident: int = 0  # rows that a multiprocessor has at a time; 0: rows are no matter
    cached: float = 1.0
    tile: int = 128  # outputs of a product that a multiprocessor computes at a time
    parts: int = 1  # of a product's columns at most, or of a row, side by side where tiles or rows are few
    start: float = 0.0  # columns in whose time such a part begins and hands over its sums
    extra_rows: float = 0.0  # of a product, in whose time a tile of weights is brought into its number format

    def on(self, memory: float, compute: float) -> "KernelTime":
        """On a chip with so many times the bandwidth and FLOP/s."""
        return structs.replace(self, bytes_per_s=self.bytes_per_s * memory, flops_per_s=self.flops_per_s * compute)

    def latency_s(self, length: float = 0.0, turns: float = 1.0) -> float:
        """What one call takes however little it does."""
        return (self.fixed_s + self.length_s * length**self.exponent) * turns

    def turns(self, rows: float, multiprocessors: int) -> int:
        return max(1, math.ceil(rows / (self.resident * multiprocessors))) if self.resident else 1

    def memory_s(self, num_bytes: float, calls: float = 1.0) -> float:
        """Of `calls` together; all rows come from memory where `calls` is 0."""
        found = min(max(2 - num_bytes / calls / CACHE_BYTES, 0.0), 1.0) if calls else 0.0
        return num_bytes / self.bytes_per_s * (1 - found * (1 - 1 / self.cached))

    def compute_s(self, flops: float, waves: float = 1.0) -> float:
        return flops * waves / self.flops_per_s

    def together_s(self, memory_s: float, compute_s: float) -> float:
        """Memory and computation of one launch, without the latency."""
        longer = max(memory_s, compute_s)
        if not longer:
            return 0.0
        return float(longer * (1 + (min(memory_s, compute_s) / longer) ** self.power) ** (1 / self.power))
