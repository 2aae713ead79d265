"""The index arithmetic of a step's chunks for a graph: one number of each row and kind, whatever the step.

New window keys of a chunk with more rows than its ring has room for wait in spare rows of the cache until the pass is
through: its rows read older keys from the ring, which stays as it was, and the step's own keys from there. Behind the pass the
newest are moved to the ring, and into snapshots. So nothing is copied within the pass, and all rows read from one store.

All of it follows from the plan: of chunks the host knows where they begin, whatever steps are still on their way.

Legend: T rows of chunks · C chunks · M rows moved.
"""

from dataclasses import dataclass

import numpy as np

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput, StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.row_plan import base_arrays, near_rows, plan_upper, sequence_of_rows
from deepinfer.model.ring_writes import ring_writes


@dataclass(frozen=True)
class ChunkPlan:
    """Arrays [T], rows and sequences counted from the first chunk's on; row numbers of window keys to be moved [M]."""

    arrays: dict[str, np.ndarray]
    moved_from: np.ndarray
    moved_to: np.ndarray


def chunk_input(plan: StepPlan) -> StepInput:
    """The chunks of a step as a step of their own; tokens before a chunk are not in it."""
    of, starts = slice(plan.num_decode, None), np.zeros(len(plan.chunk_rows) + 1, dtype=np.int64)
    np.cumsum(plan.chunk_rows, out=starts[1:])
    snapshots = plan.snapshots[plan.snapshots[:, 0] >= plan.num_decode] - [plan.num_decode, 0, 0]
    first = np.repeat(plan.chunk_starts - starts[:-1], plan.chunk_rows)
    return StepInput(
        token_ids=plan.chunk_tokens,
        positions=first + np.arange(starts[-1]),
        ngram_ids=plan.chunk_tokens[:, None],
        row_starts=starts,
        state_slots=plan.slots[of],
        block_tables=plan.block_tables[of],
        sample_rows=starts[1:] - 1,
        window_from=plan.window_from[of],
        upper_from=plan.upper_from[of],
        write_from=plan.write_from[of],
        snapshots=snapshots,
    )


def plan_chunks(step: StepInput, config: V41Config, layout: CacheLayout, cache: ModelCache) -> ChunkPlan:
    """For chunks all of whose rows pass all layers. The cache's last slot is the padding slot."""
    sequence_T, lengths_C = sequence_of_rows(step), np.diff(step.row_starts)
    arrays = base_arrays(step, sequence_T, config, layout)
    far_T = (lengths_C > near_rows(config, layout))[sequence_T]
    spare_T = (cache.num_slots + cache.num_snapshots) * layout.ring_slots + np.cumsum(far_T) - 1
    assert not far_T.any() or spare_T[-1] < len(cache.state) * layout.ring_slots, "the cache has too few spare rows"
    store_T = np.where(far_T, spare_T, arrays["ring"] + step.positions % layout.ring_slots)
    _, upper_T = plan_upper(step, config, layout, cache.num_slots, compact=False)
    arrays |= {
        "slot": step.state_slots[sequence_T],
        "store": store_T,
        "place": np.where(far_T, spare_T, -1),
        "first": step.positions[step.row_starts[:-1]][sequence_T],
        "upper_floor": arrays["floor"] if upper_T is None else upper_T,
    }
    if layout.tail_sources:
        arrays["tail_to"] = _tails(step, sequence_T, layout, cache.num_slots - 1)
    writes = ring_writes(step, layout.ring_slots, cache.num_slots)
    moved_from = store_T[writes.rows_T.numpy()]
    moved_to = (writes.outer_T * layout.ring_slots + writes.inner_T).numpy()
    moved = moved_from != moved_to
    return ChunkPlan(arrays, moved_from[moved], moved_to[moved])


def passes_whole(plan: StepPlan) -> bool:
    """Whether all rows of chunks pass all layers even where those before `upper_from` need not."""
    return bool((plan.chunk_starts >= plan.upper_from[plan.num_decode :]).all())


def _tails(step: StepInput, sequence_T: np.ndarray, layout: CacheLayout, padding_slot: int) -> np.ndarray:
    """Where each row leaves its half; those that nobody will read go to the padding slot.

    A snapshot gets none: its boundary is even, and a row completes a pair with the row before it.
    """
    slots = layout.tail_slots
    newest_T = np.arange(len(sequence_T)) >= step.row_starts[1:][sequence_T] - slots
    return np.where(newest_T, step.state_slots[sequence_T] * slots + step.positions % slots, padding_slot * slots)
