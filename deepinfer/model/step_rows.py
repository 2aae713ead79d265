"""Everything about a step that all layers share, worked out once: positions, rings, entries, tails.

Where a step is divided among ranks, queries and windows are those of the rows here, but rings, entries and tails are written
whole on every rank, from gathered rows.

Legend: T rows here · S sequences · G n-gram slots · E entries that this step completes · X rows whose window keys are shared ·
F rope frequencies.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.division import Gather, Shares
from deepinfer.model.ring_writes import RingWrites, ring_writes
from deepinfer.model.rope import RopeTable
from deepinfer.model.windows import Windows, shared_rows, windows

NEVER = 1 << 62  # as `write_from`: no row writes entries


@dataclass(frozen=True)
class EntryRows:
    """Rows of all ranks that complete a compressed entry, and where it goes; how many entries a row here may see."""

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
    """Built from a StepInput for one model and one cache layout; snapshot i lies at state row `num_slots` + i.

    `shares` says which rows are here; None: all. `num_all` counts those of all ranks.
    """

    kept_T: Tensor | None = None  # where only some rows of those here go on: which of them
    makes_entries = True  # False: entries and tails were written with rows that did not go on
    _spread_T: Tensor | None = None  # and where these rows, of all ranks, stand in the step

    def __init__(
        self,
        step: StepInput,
        config: V41Config,
        layout: CacheLayout,
        ropes: dict[bool, RopeTable],
        num_slots: int,
        shares: Shares | None = None,
    ) -> None:
        lengths_S = np.diff(step.row_starts)
        assert len(step.positions) == step.row_starts[-1] and (lengths_S > 0).all(), "every sequence of a step has rows"
        self._step, self._config, self._layout, self._ropes, self._num_slots = step, config, layout, ropes, num_slots
        self._shares, self.num_all = shares, len(step.positions)
        self._num_step_rows = self.num_all
        self._sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
        self._slots_T = step.state_slots[self._sequence_T]
        self._floor_T = self._of_rows(step.window_from)
        assert (step.positions >= self._floor_T).all(), "a row sees at least its own window key"
        self._here: np.ndarray | slice = slice(None) if shares is None else shares.here
        self.token_ids_T = torch.from_numpy(step.token_ids[self._here])
        self.ngram_ids_TG = torch.from_numpy(step.ngram_ids[self._here])
        self.positions_T = torch.from_numpy(step.positions[self._here])
        self.sequence_T = torch.from_numpy(self._sequence_T[self._here])
        self.tables_SB = torch.from_numpy(step.block_tables)
        self.rope_T2F = {compressed: table(self.positions_T) for compressed, table in ropes.items()}
        self.ring = ring_writes(step, layout.ring_slots, num_slots)
        self._shared: np.ndarray | None = None
        self.gather_shared: Gather = already_here
        self.gather_all: Gather = already_here
        if shares is not None:
            self._share(shares)
        self.windows = self._windows(self._floor_T)
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
        upper.windows = self._windows(floor_T)
        return upper

    def spread(self, x_TD: Tensor) -> Tensor:
        """Results of these rows, of all ranks, as results of the whole step's; zeros for those that did not go on."""
        x_TD = self.gather_all(x_TD)()
        if self._spread_T is None:
            return x_TD
        return x_TD.new_zeros(self._num_step_rows, x_TD.shape[1]).index_copy_(0, self._spread_T, x_TD)

    def _kept(self, kept: np.ndarray) -> Self:
        """A step of some rows alone. Their entries are written already, for they are those of all rows."""
        few = step_of_rows(self._step, self._sequence_T, kept)
        shares = None if self._shares is None else self._shares.only(kept)
        rows = type(self)(few, self._config, self._layout, self._ropes, self._num_slots, shares)
        here = kept if self._shares is None else np.flatnonzero(np.isin(self._shares.here, kept))
        rows.kept_T, rows._spread_T = torch.from_numpy(here), torch.from_numpy(kept)
        rows.makes_entries, rows._num_step_rows = False, len(self._sequence_T)
        return rows

    def _share(self, shares: Shares) -> None:
        """What is gathered of other ranks, and where rings find it."""
        written = self.ring.rows_T.numpy()
        self._shared = shared_rows(self._step, shares.owner_T, written, self._config.sliding_window)
        self.gather_shared = shares.gather(self._shared)
        self.gather_all = shares.gather(np.arange(self.num_all))
        self.ring = replace(self.ring, rows_T=torch.from_numpy(np.searchsorted(self._shared, written)))

    def _windows(self, floor_T: np.ndarray) -> Windows:
        here = None if self._shares is None else self._shares.here
        sizes = self._config.sliding_window, self._layout.ring_slots
        return windows(self._step, floor_T, *sizes, here, self._shared)

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
            visible_T=torch.from_numpy((positions[self._here] + 1) // ratio),
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


def already_here(x_TR: Tensor) -> Callable[[], Tensor]:
    """The gather of a step that is not divided."""
    return lambda: x_TR


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
