"""Everything about a step that all layers share, worked out once: positions, rings, entries, tails.

Legend: T rows of the step · S sequences · G n-gram slots · E entries that this step completes · F rope frequencies.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.ring_writes import RingWrites, ring_writes
from deepinfer.model.rope import RopeTable
from deepinfer.model.windows import windows

NEVER = 1 << 62  # as `write_from`: no row writes entries


@dataclass(frozen=True)
class EntryRows:
    """Rows that complete a compressed entry, and where it goes."""

    rows_E: Tensor
    outer_E: Tensor
    inner_E: Tensor
    rope_E2F: Tensor
    visible_T: Tensor


@dataclass(frozen=True)
class PairRows:
    """Partners of the rows that complete a ratio-2 entry, and which rows leave their half in the tail."""

    partner_E: Tensor
    from_tail_E: Tensor
    tail_outer_E: Tensor
    tail_inner_E: Tensor
    writes: RingWrites


class StepRows:
    """Built from a StepInput for one model and one cache layout; snapshot i lies at state row `num_slots` + i."""

    kept_T: Tensor | None = None  # where only some rows of the step are here: which

    def __init__(
        self,
        step: StepInput,
        config: V41Config,
        layout: CacheLayout,
        ropes: dict[bool, RopeTable],
        num_slots: int,
    ) -> None:
        lengths_S = np.diff(step.row_starts)
        assert len(step.positions) == step.row_starts[-1] and (lengths_S > 0).all(), "every sequence of a step has rows"
        self._step, self._config, self._layout, self._ropes, self._num_slots = step, config, layout, ropes, num_slots
        self._num_step_rows = len(step.positions)
        self._sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
        self._slots_T = step.state_slots[self._sequence_T]
        self._floor_T = self._of_rows(step.window_from)
        assert (step.positions >= self._floor_T).all(), "a row sees at least its own window key"
        self.token_ids_T = torch.from_numpy(step.token_ids)
        self.ngram_ids_TG = torch.from_numpy(step.ngram_ids)
        self.positions_T = torch.from_numpy(step.positions)
        self.sequence_T = torch.from_numpy(self._sequence_T)
        self.tables_SB = torch.from_numpy(step.block_tables)
        self.rope_T2F = {compressed: table(self.positions_T) for compressed, table in ropes.items()}
        self.windows = windows(step, self._floor_T, config.sliding_window, layout.ring_slots)
        self.ring = ring_writes(step, layout.ring_slots, num_slots)
        ratios = {source.ratio for source in layout.sources}
        self.entries = {ratio: self._entry_rows(ratio, ropes[True]) for ratio in ratios}
        self.pairs = self._pair_rows() if 2 in ratios else None

    def upper(self, *, compact: bool) -> Self:
        """The rows of the layers from the boundary on: these, these with shorter windows, or (`compact`) the kept ones."""
        step, window = self._step, self._config.sliding_window
        upper_T = self._of_rows(step.upper_from)
        kept_T = step.positions >= upper_T
        if compact and not kept_T.all():
            return self._kept(np.flatnonzero(kept_T))
        floor_T = np.where(kept_T, np.maximum(upper_T, self._floor_T), self._floor_T)
        if (floor_T <= np.maximum(self._floor_T, step.positions - window + 1)).all():
            return self
        upper = copy(self)
        upper.windows = windows(step, floor_T, window, self._layout.ring_slots)
        return upper

    def spread(self, x_TD: Tensor) -> Tensor:
        """Results of these rows as results of the whole step's, zeros for the others."""
        if self.kept_T is None:
            return x_TD
        return x_TD.new_zeros(self._num_step_rows, x_TD.shape[1]).index_copy_(0, self.kept_T, x_TD)

    def _kept(self, kept: np.ndarray) -> Self:
        """A step of some rows alone. Their entries are written already, for they are those of all rows."""
        few = step_of_rows(self._step, self._sequence_T, kept)
        rows = type(self)(few, self._config, self._layout, self._ropes, self._num_slots)
        rows.kept_T, rows._num_step_rows = torch.from_numpy(kept), len(self._sequence_T)
        return rows

    def _of_rows(self, floor_S: np.ndarray | None) -> np.ndarray:
        return np.zeros(len(self._sequence_T), dtype=np.int64) if floor_S is None else floor_S[self._sequence_T]

    def _entry_rows(self, ratio: int, rope: RopeTable) -> EntryRows:
        positions, first_T = self._step.positions, self._of_rows(self._step.write_from)
        assert not (first_T % ratio).any(), (
            "the first new entry must have both of its tokens in this sequence's own rows"
        )
        rows = np.flatnonzero((positions % ratio == ratio - 1) & (positions >= first_T))
        entry_E, per_block = positions[rows] // ratio, self._layout.block_tokens // ratio
        outer_E = self._step.block_tables[self._sequence_T[rows], entry_E // per_block]
        assert (outer_E >= 0).all(), "a sequence must own the block that its new entries go to"
        return EntryRows(
            rows_E=torch.from_numpy(rows),
            outer_E=torch.from_numpy(outer_E),
            inner_E=torch.from_numpy(entry_E % per_block),
            rope_E2F=rope(torch.from_numpy(entry_E * ratio)),
            visible_T=torch.from_numpy((positions + 1) // ratio),
        )

    def _pair_rows(self) -> PairRows:
        rows, tail_slots = self.entries[2].rows_E.numpy(), self._layout.tail_slots
        return PairRows(
            partner_E=torch.from_numpy(np.maximum(rows - 1, 0)),
            from_tail_E=torch.from_numpy(rows == self._step.row_starts[self._sequence_T[rows]]),
            tail_outer_E=torch.from_numpy(self._slots_T[rows]),
            tail_inner_E=torch.from_numpy((self._step.positions[rows] - 1) % tail_slots),
            writes=ring_writes(self._step, tail_slots, self._num_slots),
        )


def step_of_rows(step: StepInput, sequence_T: np.ndarray, kept: np.ndarray) -> StepInput:
    """A step of the kept rows alone: they see no window key before `upper_from`, and write no entries."""
    assert step.upper_from is not None and np.isin(step.sample_rows, kept).all(), "a sampled row passes all layers"
    counts_S = np.bincount(sequence_T[kept], minlength=len(step.state_slots))
    rest = np.flatnonzero(counts_S)
    snapshots = np.zeros((0, 3), dtype=np.int64) if step.snapshots is None else step.snapshots
    snapshots = snapshots[np.isin(snapshots[:, 0], rest)]
    return replace(
        step,
        token_ids=step.token_ids[kept],
        positions=step.positions[kept],
        ngram_ids=step.ngram_ids[kept],
        row_starts=np.concatenate(([0], np.cumsum(counts_S[rest]))),
        state_slots=step.state_slots[rest],
        block_tables=step.block_tables[rest],
        sample_rows=np.searchsorted(kept, step.sample_rows),
        window_from=step.upper_from[rest],
        upper_from=None,
        write_from=np.full(len(rest), NEVER),
        snapshots=np.column_stack((np.searchsorted(rest, snapshots[:, 0]), snapshots[:, 1:])),
    )
