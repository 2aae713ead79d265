"""What rounds of whole tiles compute over what is asked for of a product.

A tile is some outputs of a band of rows. One of many rows takes a multiprocessor whole, narrower ones share it by two; where
tiles are too few for the chip, their columns are cut into parts that are computed side by side. Kernels take the cut that is
fastest for the rows at hand, and so does this. Kernels without outputs to cut have rows for tiles.
"""

import math
from typing import NamedTuple

from deepinfer.plan.cost.kernel_time import KernelTime

SUMS = 128 * 256  # of a tile at most: what the registers of a multiprocessor hold
FEW, MANY = (8, 16, 32, 64), (128, 192, 256)  # rows of a band: two of the first share a multiprocessor
LEAST_COLUMNS = 512  # of a part
CLUSTERED = 1.66  # parts on a multiprocessor at a time; not two, for those of one tile have to be neighbours


class Tiled(NamedTuple):
    """A product. Of experts, `rows` are those of one and `outputs` those of all; `ragged`: rows are an average."""

    rows: float
    outputs: float
    columns: float = 0.0
    ragged: bool = False

    def tiles(self, height: int, width: int) -> float:
        """Of experts with more rows or fewer, the last tile of each is half full on average."""
        bands = max(self.rows / height + 0.5, 1.0) if self.ragged else _whole(self.rows / height)
        return bands * _whole(self.outputs / width)

    def rounds(self, share: float) -> float:
        """Of so many tiles to a place: whole ones. Tiles of an average may be one more or one less."""
        return max(1.0, share) if self.ragged else math.ceil(share)


def waves_of(product: Tiled, kernel: KernelTime, multiprocessors: int) -> float:
    """1 where tiles and the last round are full, and nothing is to be prepared."""
    if not product.rows or not product.outputs:
        return _of_rows(product.rows, kernel.parts, multiprocessors)
    width = kernel.tile
    parts = min(
        kernel.parts, product.columns / LEAST_COLUMNS, CLUSTERED * multiprocessors / _whole(product.outputs / width)
    )
    narrow = FEW if product.rows <= FEW[-1] else FEW[-1:]
    ways = [_in_pairs(product, kernel, multiprocessors, max(1, int(parts)), height) for height in narrow]
    for height in MANY:
        if product.rows > FEW[-1] and height * width <= SUMS:
            rounds = product.rounds(product.tiles(height, width) / multiprocessors)
            ways.append(rounds * (height + kernel.extra_rows))
    return min(ways) * multiprocessors * width / (product.rows * product.outputs)


def _of_rows(rows: float, parts: int, multiprocessors: int) -> float:
    """Of a kernel that gives each row to a multiprocessor, and to several where there are enough for all rows."""
    if not rows or parts == 1:
        return 1.0
    shares = rows * (parts if rows * parts <= multiprocessors else 1)
    return math.ceil(shares / multiprocessors) * multiprocessors / shares


def _in_pairs(product: Tiled, kernel: KernelTime, multiprocessors: int, parts: int, height: int) -> float:
    """Rows that a multiprocessor computes one after another, of a tile's whole columns."""
    tiles, each = product.tiles(height, kernel.tile), height + kernel.extra_rows
    if parts == 1:
        return 2 * product.rounds(tiles / (2 * multiprocessors)) * each
    rounds = max(1.0, tiles * parts / (CLUSTERED * multiprocessors))
    return 2 * rounds * (1 / parts + kernel.start / product.columns) * each


def _whole(value: float) -> int:
    """Rounded up, unless what is beyond a whole number comes of the reckoning."""
    return math.ceil(value * (1 - 1e-9))
