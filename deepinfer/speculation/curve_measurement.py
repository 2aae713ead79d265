"""Measuring a cost curve at start-up: few sizes where it is straight, more where it bends."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from deepinfer.speculation.cost_curve import CostCurve

# Steps of a size after the first, where that took so many seconds at most, else one: a longer step is less shaken, and the
# user waits.
REPEATS = ((0.01, 5), (0.1, 2))
LEAST_RISE = 0.04  # between two sizes, as a share: less is not looked into
MOST_SIZES = 72  # of rows
MOST_S = 20.0  # of steps, after which no further sizes are looked for
SEQUENCE_RATIO = 4  # from one number of sequences to the next

Report = Callable[[int, int], None]  # (sizes that are through, most that there may be)


class Measure(Protocol):
    """Runs one step on the engine and says its seconds."""

    def __call__(self, rows: int, sequences: int, draft: bool) -> float:
        """A step of `rows` rows. Either `sequences` equals `rows`: each is a decode step that is sampled, with `draft` drafts
        are proposed after it; or it is 0: nothing is sampled, the forward pass alone."""


def measure_curve(
    measure: Measure,
    *,
    most_rows: int,
    most_sequences: int,
    sizes: Sequence[int] = (),
    most_sizes: int = MOST_SIZES,
    most_s: float = MOST_S,
    report: Report = lambda done, most: None,
) -> CostCurve:
    """The curve of an engine for 1 … `most_rows` rows and 1 … `most_sequences` sequences.

    `sizes`: where the device fills steps up to certain sizes, these, rising; only they are measured. Otherwise 1, 2, 4, …,
    then the row after each, then sizes between the two neighbours that differ most, until no step is left that matters, there
    are `most_sizes`, or steps have taken `most_s`. `report` hears of every size.
    """
    assert 1 <= most_sequences <= most_rows
    timer = _Timer(measure)
    counts = first_counts(most_sequences)
    most = (len(sizes) or max(most_sizes, most_rows.bit_length() + 1)) + len(counts)
    forward_s: dict[int, float] = {}

    def run(size: int) -> None:
        forward_s[size] = shortest(timer, size, 0, False)
        report(len(forward_s), most)

    for size in sizes or powers(most_rows):
        run(int(size))
    while not sizes and timer.spent_s < most_s and len(forward_s) < most_sizes:
        behind = [size for size in first_sizes(most_rows) if size not in forward_s]
        if not (wanted := behind[:1] or _widest_gap(forward_s)):
            break
        for size in wanted:
            run(size)
    rows = np.array(sorted(forward_s))
    plain, drafting = [], []
    for done, count in enumerate(counts, start=1):
        alone_s = forward_s.get(count) or shortest(timer, count, 0, False)
        sampled_s = shortest(timer, count, count, False)
        plain.append(max(0.0, sampled_s - alone_s))
        drafting.append(max(0.0, shortest(timer, count, count, True) - max(sampled_s, alone_s)))
        report(len(forward_s) + done, most)
    return CostCurve(
        rows,
        np.array([forward_s[size] for size in rows.tolist()]),
        np.array(counts),
        np.array(plain),
        np.array(drafting),
        padded=bool(sizes),
    )


class _Timer:
    """A Measure that adds up what it took."""

    def __init__(self, measure: Measure) -> None:
        self._measure, self.spent_s = measure, 0.0

    def __call__(self, rows: int, sequences: int, draft: bool) -> float:
        seconds = self._measure(rows, sequences, draft)
        self.spent_s += seconds
        return seconds


def shortest(measure: Measure, rows: int, sequences: int, draft: bool) -> float:
    """Seconds of the shortest of a few steps: whatever else the machine does only makes them longer."""
    first_s = measure(rows, sequences, draft)
    repeats = next((repeats for at_most_s, repeats in REPEATS if first_s <= at_most_s), 1)
    return min(first_s, *(measure(rows, sequences, draft) for _ in range(repeats)))


def powers(most: int) -> list[int]:
    """1, 2, 4, … and `most`."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def first_counts(most: int) -> list[int]:
    """Numbers of sequences: 1, 4, 16, … and `most`."""
    counts = {1, most}
    while (count := max(counts - {most}, default=1) * SEQUENCE_RATIO) < most:
        counts.add(count)
    return sorted(counts)


def first_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, 9, 16, 17, … and `most`: steps of a curve mostly lie just behind powers of two."""
    return sorted({*powers(most), *(size + 1 for size in powers(most) if 8 <= size < most)})


def _widest_gap(forward_s: dict[int, float]) -> tuple[int, ...]:
    """Sizes to measure next: the middle, and the row after it, of the neighbours with the largest rise; () for none."""
    sizes = np.array(sorted(forward_s))
    seconds = np.array([forward_s[size] for size in sizes.tolist()])
    rise = (seconds[1:] - seconds[:-1]) / np.maximum(seconds[:-1], 1e-12)
    rise[np.diff(sizes) == 1] = 0.0
    if not len(rise) or rise.max() < LEAST_RISE:
        return ()
    at = int(rise.argmax())
    low, high = int(sizes[at]), int(sizes[at + 1])
    middle = (low + high) // 2
    return tuple(size for size in (middle, middle + 1) if low < size < high)
