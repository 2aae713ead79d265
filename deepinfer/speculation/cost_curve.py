"""What a step costs by its rows and its sequences: measured tables, corrected by the steps that run.

A step of `rows` rows that samples `sequences` sequences takes

    forward(rows) + slope · rows + plain(sequences) [+ drafting(sequences)]        seconds.

The first and the last two are tables measured at start-up; `slope` (s/row, never negative) is what a row takes more than then,
since contexts are longer or the machine is slower. Both are corrected from whole steps by medians, so that a stray slow step
changes nothing. Tables rise with their argument: noise must not make a step of more rows look cheaper.
"""

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median

import numpy as np

WINDOW = 5_000  # steps after which a size that did not come again no longer counts for the slope
MOST_PER_SIZE, LEAST_PER_SIZE = 64, 10  # steps of about the same rows that count, and from which on they do
SIZES_PER_DOUBLING = 4  # rows count as about the same within a fifth
LEAST_RATIO = 1.5  # between two sizes whose times say what a row takes
LEAST_RECENT, MOST_RECENT = 5, 9  # steps with the same sequences that correct what is not rows
LEAST_SHARE = 0.1  # of the measured forward pass: no correction predicts less


def rising(values: np.ndarray) -> np.ndarray:
    """The non-decreasing sequence nearest to `values` in squares (pool adjacent violators), float64."""
    sums: list[float] = []
    counts: list[int] = []
    for value in values.astype(np.float64).tolist():
        total, count = value, 1
        while sums and sums[-1] * count >= total * counts[-1]:
            total, count = total + sums.pop(), count + counts.pop()
        sums.append(total)
        counts.append(count)
    return np.repeat(np.array(sums) / np.array(counts), counts)


class CostCurve:
    """Seconds of a step; `observe` what steps really take.

    `rows` and `sequences` are int64, rising, from 1; the other three are float64 seconds at them. Between two sizes the curve
    is straight, or with `padded` flat at the next size (a device that fills a step up to one of these sizes). Beyond the
    last it goes on as it went from the size of at most half of it.
    """

    def __init__(
        self,
        rows: np.ndarray,
        forward_s: np.ndarray,
        sequences: np.ndarray,
        plain_s: np.ndarray,
        drafting_s: np.ndarray,
        *,
        padded: bool = False,
    ) -> None:
        self.rows, self.sequences, self.padded = np.asarray(rows, np.int64), np.asarray(sequences, np.int64), padded
        assert (np.diff(self.rows) > 0).all() and (np.diff(self.sequences) > 0).all()
        self.forward_s, self.plain_s, self.drafting_s = (
            rising(np.asarray(table)) for table in (forward_s, plain_s, drafting_s)
        )
        self.slope_s = 0.0  # per row
        self._sizes: dict[int, _Size] = defaultdict(_Size)
        self._num_observed = 0
        # (rows, seconds beside the forward pass), of steps with the same sequences; and seconds beside all tables
        self._recent: dict[tuple[int, bool], deque[tuple[float, float]]] = defaultdict(_recent_steps)
        self._beside: dict[bool, deque[tuple[float, float]]] = defaultdict(_recent_steps)

    def predict(self, rows: np.ndarray | int, sequences: int, *, drafted: bool = True) -> np.ndarray:
        """Seconds of steps of `rows` rows (any shape) and `sequences` sampled sequences, float64 of the same shape."""
        sized = self._sized(np.asarray(rows))
        forward_s = _along(sized, self.rows, self.forward_s)
        other_s = self._other_s(sequences, drafted)
        return np.maximum(forward_s + self.slope_s * sized + other_s, LEAST_SHARE * forward_s)

    def observe(self, rows: int, sequences: int, device_s: float, *, drafted: bool) -> None:
        """A step of so many rows and sampled sequences took `device_s`. Times that are not finite and positive are ignored."""
        if not (math.isfinite(device_s) and device_s > 0 and rows > 0):
            return
        sized = self._sized(np.asarray(rows))
        forward_s = float(_along(sized, self.rows, self.forward_s))
        tables_s = forward_s + self._table_s(sequences, drafted)
        over_forward_s, over_tables_s = device_s - forward_s, device_s - tables_s
        self._recent[sequences, drafted].append((float(sized), over_forward_s))
        self._beside[drafted].append((float(sized), over_tables_s))
        self._num_observed += 1
        size = self._sizes[round(SIZES_PER_DOUBLING * math.log2(float(sized)))]
        if size.add(float(sized), over_tables_s, over_tables_s / tables_s, self._num_observed):
            self._correct_slope()

    def _correct_slope(self) -> None:
        """What rows explain is how the rest rises from size to size. Where there is one size, rows have become dearer by as
        much as all the rest: the machine is slower, or others use it too."""
        oldest = self._num_observed - WINDOW
        sizes = [size for size in self._sizes.values() if size.is_enough and size.last > oldest]
        slopes = [
            (large.rest_s - small.rest_s) / (large.rows - small.rows)
            for small, large in itertools.permutations(sizes, 2)
            if large.rows >= LEAST_RATIO * small.rows
        ]
        rising_s = (self.forward_s[-1] - self.forward_s[0]) / max(1, self.rows[-1] - self.rows[0])
        slopes = slopes or [size.share * float(rising_s) for size in sizes]
        self.slope_s = max(0.0, median(slopes)) if slopes else 0.0

    def _other_s(self, sequences: int, drafted: bool) -> float:
        """Seconds that rows do not explain: lately with the same sequences, else as measured and lately beside that."""
        recent = self._recent.get((sequences, drafted), ())
        if len(recent) >= LEAST_RECENT:
            return self._rest_s(recent)
        beside = self._beside[drafted]
        return self._table_s(sequences, drafted) + (self._rest_s(beside) if len(beside) >= LEAST_RECENT else 0.0)

    def _rest_s(self, steps: Iterable[tuple[float, float]]) -> float:
        return median(seconds - self.slope_s * rows for rows, seconds in steps)

    def _table_s(self, sequences: int, drafted: bool) -> float:
        plain = float(_along(np.asarray(sequences), self.sequences, self.plain_s))
        return plain + (float(_along(np.asarray(sequences), self.sequences, self.drafting_s)) if drafted else 0.0)

    def _sized(self, rows: np.ndarray) -> np.ndarray:
        """Rows that the device really runs."""
        if not self.padded:
            return rows
        at = np.searchsorted(self.rows, rows)
        return np.where(at < len(self.rows), self.rows[np.minimum(at, len(self.rows) - 1)], rows)


class _Size:
    """Steps of about the same rows. Medians: `rows`; `rest_s` is what they took more than the tables say, `share` its share."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=MOST_PER_SIZE)
        self.rows = self.rest_s = self.share = 0.0
        self.count = self.last = 0

    @property
    def is_enough(self) -> bool:
        return self.count >= LEAST_PER_SIZE

    def add(self, rows: float, rest_s: float, share: float, number: int) -> bool:
        """Book step `number`; whether the medians are new ones, which every tenth step makes them."""
        self._steps.append((rows, rest_s, share))
        self.count, self.last = self.count + 1, number
        if self.count % LEAST_PER_SIZE:
            return False
        self.rows, self.rest_s, self.share = (median(column) for column in zip(*self._steps))
        return True


def _recent_steps() -> deque[tuple[float, float]]:
    return deque(maxlen=MOST_RECENT)


def _along(asked: np.ndarray, sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """`seconds` at `sizes`, straight between them; beyond the last as from the size of at most half of it."""
    inside = np.interp(asked, sizes, seconds)
    if len(sizes) == 1:
        return inside
    half = max(0, int(np.searchsorted(sizes, sizes[-1] / 2, side="right")) - 1)
    slope = (seconds[-1] - seconds[half]) / (sizes[-1] - sizes[half])
    return inside + slope * np.maximum(0, asked - sizes[-1])
