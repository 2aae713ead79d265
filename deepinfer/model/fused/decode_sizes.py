"""For which numbers of rows a step is made: a few sizes, so that one graph serves many steps."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

LADDER = ((8, 1), (64, 8), (256, 32), (1024, 64))  # up to → in steps of
RUNGS_PER_DOUBLING = 8  # behind the ladder
LEAST_BLOCKS = 16  # columns of tables: a row reads what it sees, so that short sequences share graphs for nothing
TOLERANCE = 0.01  # a step this much longer counts as equally long: less than what times of one step differ by


def default_sizes(most: int) -> list[int]:
    """Sizes up to `most`, rising, `most` the last: at most one in eight rows is padding from 64 on."""
    sizes, size = [], 0
    while size < most:
        step = next((step for end, step in LADDER if size < end), 0)
        size += step or 2 ** int(math.log2(size)) // RUNGS_PER_DOUBLING
        sizes.append(min(size, most))
    return sizes


def graph_sizes(
    curve_rows: Sequence[int], curve_seconds: Sequence[float], most: int, tolerance: float = TOLERANCE
) -> list[int]:
    """Of the measured sizes up to `most`, and `most`, those that are worth a graph: running the next one takes longer.

    `curve_seconds` are the times of steps of `curve_rows` rows (rising). A size is left out where the next one that is kept
    takes at most `tolerance` (relative) longer. Between and beyond the measured sizes times are interpolated.
    """
    assert len(curve_rows) == len(curve_seconds) > 0, "a time for each number of rows"
    candidates = sorted({int(rows) for rows in curve_rows if rows < most} | {most})
    seconds = np.interp(candidates, curve_rows, curve_seconds)
    kept = [most]
    later_s = seconds[-1]
    for size, size_s in zip(candidates[-2::-1], seconds[-2::-1]):
        if later_s > size_s * (1 + tolerance):
            kept.append(size)
            later_s = size_s
    return kept[::-1]


def size_of(count: int, sizes: Sequence[int]) -> int:
    """The smallest of the rising `sizes` that has room for `count`."""
    assert sizes and count <= sizes[-1], f"{count} do not fit the largest size, {sizes[-1] if sizes else 0}"
    return sizes[bisect_left(sizes, count)]


def shared_size(count: int, sizes: Sequence[int], shared: int) -> tuple[int, int]:
    """What `count` rows are padded to where ranks agreed that none has more than `shared`, padded; and `shared`, 0 if the same.

    The largest size that is not more, so that there are hardly more graphs than for a rank alone, whose `shared` is 0.
    """
    least = size_of(count, sizes)
    assert not shared or shared >= least, f"ranks agreed on {shared} rows, this one has {least}"
    rows = max(least, sizes[bisect_right(sizes, shared) - 1]) if shared else least
    return rows, shared if shared > rows else 0


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, 1 at least."""
    return 1 << max(0, count - 1).bit_length()
