"""Histograms that cost little where a thousand values come at once, and the buckets that all of them share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from prometheus_client.core import HistogramMetricFamily

FEW = 32  # values up to which a loop is faster than numpy
# seconds; fine below 300 ms, where the promises about tokens lie
FIRST_TOKEN_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25),
    *(0.275, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.035, 0.04),
    *(0.05, 0.06, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6)
STEP_TOKENS = (0, *(2.0**power for power in range(15)))


class Tally:
    """Counts of values by bucket; a bound belongs to the bucket that it ends. For one thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # of all values
        self._bounds_B = np.asarray(self.bounds)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: Sequence[float]) -> None:
        """As `add` of each."""
        if len(values) <= FEW:
            for value in values:
                self.add(value)
            return
        values_N = np.asarray(values)
        found_B = np.bincount(np.searchsorted(self._bounds_B, values_N), minlength=len(self.counts))
        self.counts = (found_B + self.counts).tolist()
        self.total += float(values_N.sum())

    def family(self, name: str, about: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """What Prometheus is told."""
        bounds = [f"{bound:g}" if bound < 1 else str(bound) for bound in self.bounds] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(self.counts), strict=True))
        family = HistogramMetricFamily(name, about, labels=list(labels))
        family.add_metric(list(labels.values()), buckets=buckets, sum_value=self.total)
        return family


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value below which `share` of the counted values lie, a straight line within its bucket; None where nothing was
    counted. Beyond the last bound nothing is known, and it is told."""
    wanted, below, low = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return low + (bound - low) * (wanted - below) / count
        below, low = below + count, bound
    return float(bounds[-1])
