"""How long one kernel takes, from a few figures fitted to its timings: a formula, so that it tells of other sizes too.

    latency = fixed_s + length_s × length ^ exponent
    body    = ((bytes ÷ bytes_per_s) ^ power + (FLOPs × waves ÷ flops_per_s) ^ power) ^ (1 ÷ power)

`length` is what a kernel walks through one after another: the columns of a product, the entries of a top-k. `waves` is how much
longer a product takes because rows do not fill its tiles, and tiles not the last round of the chip's multiprocessors, up to
`most_waves`. A power of 1 adds memory and computation, a high one takes the longer of both.
"""

import math

from msgspec import structs

from deepinfer.plan.frozen import Frozen

TILE, LEAST_TILE = 128, 8  # rows and outputs that a multiprocessor computes at a time; and the fewest rows


class KernelTime(Frozen, frozen=True, kw_only=True):
    """The figures of one kind of kernel on one chip; seconds, bytes and FLOPs."""

    fixed_s: float
    bytes_per_s: float
    flops_per_s: float = math.inf
    power: float = 1.0
    length_s: float = 0.0
    exponent: float = 1.0
    most_waves: float = 1.0

    def on(self, memory: float, compute: float) -> "KernelTime":
        """On a chip with so many times the bandwidth and FLOP/s."""
        return structs.replace(self, bytes_per_s=self.bytes_per_s * memory, flops_per_s=self.flops_per_s * compute)

    def latency_s(self, length: float = 0.0) -> float:
        """What one call takes however little it does."""
        return self.fixed_s + self.length_s * length**self.exponent

    def compute_s(self, flops: float, waves: float = 1.0) -> float:
        return flops * min(waves, self.most_waves) / self.flops_per_s

    def body_s(self, num_bytes: float, flops: float, waves: float = 1.0) -> float:
        """Memory and computation together, without the latency."""
        memory_s, compute_s = num_bytes / self.bytes_per_s, self.compute_s(flops, waves)
        longer = max(memory_s, compute_s)
        if not longer:
            return 0.0
        return float(longer * (1 + (min(memory_s, compute_s) / longer) ** self.power) ** (1 / self.power))


def waves_of(rows: float, outputs: float, multiprocessors: int, ragged: bool = False) -> float:
    """What rounds of whole tiles compute over what is asked for: 1 where tiles and the last round are full.

    Up to half a tile of rows there are narrower tiles. Of experts, `rows` are those of one and `outputs` those of all; where
    they are `ragged`, experts have more rows or fewer than that, and the last tile of each is half full on average.
    """
    if not rows or not outputs:
        return 1.0
    if ragged:
        height = min(max(rows, LEAST_TILE), TILE)
        bands = max(rows / height + 0.5, 1.0)
    else:
        height = TILE if rows > TILE / 2 else max(LEAST_TILE, 1 << (_whole(rows) - 1).bit_length())
        bands = _whole(rows / height)
    tiles = bands * _whole(outputs / TILE)
    return math.ceil(tiles / multiprocessors) * multiprocessors / tiles * (bands * height / rows)


def _whole(value: float) -> int:
    """Rounded up, unless what is beyond a whole number comes of the reckoning."""
    return math.ceil(value * (1 - 1e-9))
