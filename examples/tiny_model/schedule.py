"""What happens at which step: learning rate, quantisation, sparse attention, replay."""

from typing import NamedTuple

from examples.tiny_model.feed import BatchShape
from examples.tiny_model.model import Mode

SHORT = BatchShape(rows=96, tokens=768, alignment=2, long_context=False)
LONG = BatchShape(rows=48, tokens=2048, alignment=8, long_context=True)

PEAK_RATE = 4e-3
WARM_UP_STEPS = 100
FLAT_SHARE = 0.6  # of all steps; then linearly down
LAST_RATE_SHARE = 0.01
WEIGHT_QUANTISATION_SHARE = 0.5
REPLAY_SHARE = 0.9
INDEX_ROWS_SHARE = 0.25  # the indexer is small: it learns enough from a quarter of the rows


class Step(NamedTuple):
    shape: BatchShape
    mode: Mode
    rate: float
    quantise_weights: bool
    replay: bool


class Schedule(NamedTuple):
    """Short documents with dense keys first, then long ones with everything the engine does."""

    short_steps: int
    long_steps: int

    @property
    def num_steps(self) -> int:
        return self.short_steps + self.long_steps

    def at(self, step: int) -> Step:
        """`step` counts from 0."""
        progress = step / self.num_steps
        is_long = step >= self.short_steps
        shape = LONG if is_long else SHORT
        warm = min(1.0, (step + 1) / WARM_UP_STEPS)
        fall = max(0.0, (progress - FLAT_SHARE) / (1 - FLAT_SHARE))
        rate = PEAK_RATE * warm * (1 - (1 - LAST_RATE_SHARE) * fall)
        mode = Mode(quantised=is_long, sparse=is_long, index_rows=max(1, int(shape.rows * INDEX_ROWS_SHARE)))
        return Step(shape, mode, rate, is_long or progress >= WEIGHT_QUANTISATION_SHARE, progress >= REPLAY_SHARE)
