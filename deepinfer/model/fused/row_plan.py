"""The index arithmetic of a step, on the host: row numbers of everything that its rows write and read.

Legend: T rows of the step · S sequences · G n-gram slots · B blocks of a sequence · M rows copied.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.division import Shares
from deepinfer.model.fused.divided_rows import Others, divided_arrays, others_of
from deepinfer.model.ring_writes import ring_writes
from deepinfer.model.step_rows import step_of_rows


@dataclass(frozen=True)
class Run:
    """Adjacent rows that read their window keys from one store: the ring, or (`far`) the step's scratch store."""

    first: int
    end: int
    far: bool


@dataclass
class RowPlan:
    """Arrays by name, all of whose numbers fit int32, and what the host keeps for itself.

    Sequences with more rows than a ring has room for are far: their older keys are copied to a scratch store of
    `scratch_rows` rows, this step's keys are written behind them, and from there the newest are copied to the ring. With a far
    sequence all keys of the step take that way.
    """

    arrays: dict[str, np.ndarray]
    runs: list[Run]
    scratch_rows: int
    num_rows: int
    num_step_rows: int  # of the whole step, where only some of its rows go on
    writes_entries: bool = True
    others: Others | None = None  # where ranks share the rows: `num_rows` are those here

    def __post_init__(self) -> None:
        largest = max((int(np.abs(array).max()) for array in self.arrays.values() if array.size), default=0)
        assert largest < 2**31, "row numbers have 31 bits: give the cache fewer blocks"


def plan_rows(
    step: StepInput, config: V41Config, layout: CacheLayout, num_slots: int, shares: Shares | None = None
) -> RowPlan:
    """For all rows of the step, or for those here of `shares`; snapshot i is state row `num_slots` + i."""
    lengths_S, sequence_T = np.diff(step.row_starts), sequence_of_rows(step)
    arrays = base_arrays(step, sequence_T, config, layout) | {"tables": step.block_tables}
    floor_T = arrays["floor"]
    if layout.tail_sources:
        arrays |= _tails(step, layout, num_slots)
    far_S = lengths_S > near_rows(config, layout)
    copies, scratch_rows = _window_copies(step, sequence_T, floor_T, far_S, config.sliding_window, layout, num_slots)
    arrays, far_T, total = arrays | copies, far_S[sequence_T], len(sequence_T)
    if shares is None:
        return RowPlan(arrays, _runs(far_T), scratch_rows, total, total)
    others = others_of(step, shares, config, layout, num_slots)
    arrays, here = divided_arrays(arrays, step, shares, others), shares.here
    return RowPlan(arrays, _runs(far_T[here]), scratch_rows, len(here), total, others=others)


def near_rows(config: V41Config, layout: CacheLayout) -> int:
    """Rows of a sequence that a ring takes at once beside all that the first of them sees."""
    return layout.ring_slots - config.sliding_window + 1


def sequence_of_rows(step: StepInput) -> np.ndarray:
    """[T]: which of the step's sequences each row is of."""
    lengths_S = np.diff(step.row_starts)
    assert len(step.positions) == step.row_starts[-1] and (lengths_S > 0).all(), "every sequence of a step has rows"
    return np.repeat(np.arange(len(lengths_S)), lengths_S)


def base_arrays(
    step: StepInput, sequence_T: np.ndarray, config: V41Config, layout: CacheLayout
) -> dict[str, np.ndarray]:
    """One number (of n-grams: some) of each row, whatever store its window keys lie in."""
    floor_T = _of_rows(step.window_from, sequence_T)
    assert (step.positions >= floor_T).all(), "a row sees at least its own window key"
    arrays = {
        "token_ids": step.token_ids,
        "ngram_ids": step.ngram_ids[:, : config.engram_max_ngram_size],
        "positions": step.positions,
        "pair_positions": step.positions // 2 * 2,
        "own": np.arange(len(sequence_T)),
        "sequence": sequence_T,
        "floor": floor_T,
        "ring": step.state_slots[sequence_T] * layout.ring_slots,
    }
    for ratio in sorted({source.ratio for source in layout.sources}):
        arrays |= _entries(step, sequence_T, ratio, layout)
    if layout.tail_sources:
        arrays["partner"] = _partners(step, sequence_T, layout)
    return arrays


def plan_upper(
    step: StepInput,
    config: V41Config,
    layout: CacheLayout,
    num_slots: int,
    *,
    compact: bool,
    shares: Shares | None = None,
) -> tuple[RowPlan | None, np.ndarray | None]:
    """For the layers from the boundary on: a plan of the kept rows (`compact`), or the floors where only those differ.

    Of the rows here, where there are `shares`."""
    here = slice(None) if shares is None else shares.here
    if step.upper_from is None:
        return None, None
    sequence_T = sequence_of_rows(step)
    floor_T, upper_T = _of_rows(step.window_from, sequence_T), _of_rows(step.upper_from, sequence_T)
    kept_T = step.positions >= upper_T
    if not compact or kept_T.all():
        return None, np.where(kept_T, np.maximum(upper_T, floor_T), floor_T)[here]
    kept = np.flatnonzero(kept_T)
    few = step_of_rows(step, sequence_T, kept)
    plan = plan_rows(few, config, layout, num_slots, None if shares is None else shares.only(kept))
    plan.arrays |= {"kept": np.flatnonzero(kept_T[here]), "spread": kept}
    plan.num_step_rows, plan.writes_entries = len(sequence_T), False
    return plan, None


def _of_rows(floor_S: np.ndarray | None, sequence_T: np.ndarray) -> np.ndarray:
    return np.zeros(len(sequence_T), dtype=np.int64) if floor_S is None else floor_S[sequence_T]


def _entries(step: StepInput, sequence_T: np.ndarray, ratio: int, layout: CacheLayout) -> dict[str, np.ndarray]:
    """Where the entry goes that a row completes, -1 where it completes none; how many entries it may see."""
    first_T = _of_rows(step.write_from, sequence_T)
    assert not (first_T % ratio).any(), "the first new entry must have both of its tokens in this sequence's own rows"
    completes_T = (step.positions % ratio == ratio - 1) & (step.positions >= first_T)
    entry_T, per_block = step.positions // ratio, layout.block_tokens // ratio
    block_T = step.block_tables[sequence_T, np.where(completes_T, entry_T // per_block, 0)]
    assert (block_T[completes_T] >= 0).all(), "a sequence must own the block that its new entries go to"
    rows_T = np.where(completes_T, block_T * per_block + entry_T % per_block, -1)
    return {f"entry_rows{ratio}": rows_T, f"visible{ratio}": (step.positions + 1) // ratio}


def _partners(step: StepInput, sequence_T: np.ndarray, layout: CacheLayout) -> np.ndarray:
    """Each row's partner, where it completes a pair: the row before it, or -1 - n for place n of the tails."""
    slots, own_T = layout.tail_slots, np.arange(len(sequence_T))
    waiting_T = step.state_slots[sequence_T] * slots + (step.positions - 1) % slots
    first_T = own_T == step.row_starts[sequence_T]
    return np.where(step.positions % 2 == 0, own_T, np.where(first_T, -1 - waiting_T, own_T - 1))


def _tails(step: StepInput, layout: CacheLayout, num_slots: int) -> dict[str, np.ndarray]:
    """Rows that leave their half in the tails, and where."""
    writes = ring_writes(step, layout.tail_slots, num_slots)
    to = writes.outer_T * layout.tail_slots + writes.inner_T
    return {"tail_from": writes.rows_T.numpy(), "tail_to": to.numpy()}


def _window_copies(
    step: StepInput,
    sequence_T: np.ndarray,
    floor_T: np.ndarray,
    far_S: np.ndarray,
    window: int,
    layout: CacheLayout,
    num_slots: int,
) -> tuple[dict[str, np.ndarray], int]:
    """Where new window keys are written, and the rows that are copied before and after; rows of the scratch store."""
    slots, own_T = layout.ring_slots, np.arange(len(sequence_T))
    ring_T = step.state_slots[sequence_T] * slots + step.positions % slots
    writes = ring_writes(step, slots, num_slots)
    rows, to = writes.rows_T.numpy(), (writes.outer_T * slots + writes.inner_T).numpy()
    if not far_S.any():  # all rows go to their own ring, so that only snapshots are left to be copied
        rest = slice(len(own_T), None)
        copies = {"store": ring_T, "place": np.full_like(own_T, -1), "new_from": ring_T[rows[rest]], "new_to": to[rest]}
        return copies, 0
    place_T = own_T + np.cumsum(far_S)[sequence_T] * (window - 1)
    back = np.arange(window - 1, 0, -1)
    starts = step.row_starts[:-1][far_S]
    wanted = step.positions[starts][:, None] - back
    seen = wanted >= floor_T[starts][:, None]
    old_from = step.state_slots[far_S][:, None] * slots + wanted % slots
    old_to = place_T[starts][:, None] - back
    copies = {
        "store": place_T,
        "place": np.where(far_S[sequence_T], place_T, -1),
        "old_from": old_from[seen],
        "old_to": old_to[seen],
        "new_from": place_T[rows],
        "new_to": to,
    }
    return copies, int(place_T[-1]) + 1


def _runs(far_T: np.ndarray) -> list[Run]:
    borders = np.flatnonzero(np.diff(far_T)) + 1
    edges = [0, *borders.tolist(), len(far_T)]
    return [Run(a, b, bool(far_T[a])) for a, b in pairwise(edges) if a < b]
