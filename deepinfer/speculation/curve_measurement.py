"""Measuring a cost curve at start-up: few sizes where it is straight, more where it bends."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from deepinfer.speculation.cost_curve import CostCurve

REPEATS = 5  # timed steps of a size, after one that is not; the shortest and the longest do not count
SLOW_S, SLOW_REPEATS = 0.05, 3  # a step that takes as long is timed less often: it is less shaken, and the user waits
LEAST_RISE = 0.04  # between two sizes, as a share: less is not looked into
MOST_SIZES = 72  # of rows
MOST_S = 20.0  # of steps, after which no further sizes are looked for


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
) -> CostCurve:
    """The curve of an engine for 1 … `most_rows` rows and 1 … `most_sequences` sequences.

    `sizes`: where the device fills steps up to certain sizes, these, rising; only they are measured. Otherwise 1, 2, 4, … and
    the row after each, then sizes between the two neighbours that differ most, until no step is left that matters, there are
    `most_sizes`, or steps have taken `most_s`.
    """
    assert 1 <= most_sequences <= most_rows
    if sizes:
        forward_s = {int(size): trimmed(measure, int(size), 0, False) for size in sizes}
    else:
        forward_s = {size: trimmed(measure, size, 0, False) for size in first_sizes(most_rows)}
        while _steps_s(forward_s) < most_s and len(forward_s) < most_sizes and (between := _widest_gap(forward_s)):
            for size in between:
                forward_s[size] = trimmed(measure, size, 0, False)
    rows = np.array(sorted(forward_s))
    sequences = np.array([size for size in first_sizes(most_sequences) if _is_power(size) or size == most_sequences])
    plain, drafting = [], []
    for count in sequences.tolist():
        alone_s = forward_s.get(count) or trimmed(measure, count, 0, False)
        sampled_s = trimmed(measure, count, count, False)
        plain.append(max(0.0, sampled_s - alone_s))
        drafting.append(max(0.0, trimmed(measure, count, count, True) - max(sampled_s, alone_s)))
    return CostCurve(
        rows,
        np.array([forward_s[size] for size in rows.tolist()]),
        sequences,
        np.array(plain),
        np.array(drafting),
        padded=bool(sizes),
    )


def trimmed(measure: Measure, rows: int, sequences: int, draft: bool) -> float:
    """Mean seconds of a step but for the shortest and the longest of REPEATS, after one that is not counted."""
    slow = measure(rows, sequences, draft) > SLOW_S
    times = sorted(measure(rows, sequences, draft) for _ in range(SLOW_REPEATS if slow else REPEATS))
    return float(np.mean(times[1:-1]))


def _steps_s(forward_s: dict[int, float]) -> float:
    return sum(seconds * (1 + (SLOW_REPEATS if seconds > SLOW_S else REPEATS)) for seconds in forward_s.values())


def first_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, 9, 16, 17, … and `most`: steps of a curve mostly lie just behind powers of two."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({*powers, *(size + 1 for size in powers if 8 <= size < most), most})


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


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
