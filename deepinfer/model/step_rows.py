"""Everything about a step that all layers share, worked out once: positions, rings, entries, tails.

Legend: T rows of the step · S sequences · W window · G n-gram slots · E entries that this step completes · F rope frequencies.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.rope import RopeTable


@dataclass(frozen=True)
class WindowRows:
    """Rows that read their whole window from the ring, after this step's keys were written to it. `rows` None: all rows."""

    rows_T: Tensor | None
    outer_TW: Tensor
    inner_TW: Tensor
    mask_TW: Tensor


@dataclass(frozen=True)
class Chunk:
    """A run of rows too long for the ring: it reads W - 1 older keys first and then slides over them and its own."""

    start: int
    end: int
    outer_W: Tensor
    inner_W: Tensor
    mask_TW: Tensor


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
    write_T: Tensor
    write_outer_T: Tensor
    write_inner_T: Tensor


class StepRows:
    """Built from a StepInput for one model and one cache layout."""

    def __init__(self, step: StepInput, config: V41Config, layout: CacheLayout, ropes: dict[bool, RopeTable]) -> None:
        lengths_S = np.diff(step.row_starts)
        assert len(step.positions) == step.row_starts[-1] and (lengths_S > 0).all(), "every sequence of a step has rows"
        self._step, self._config, self._layout = step, config, layout
        self._sequence_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
        self._slots_T = step.state_slots[self._sequence_T]
        self._long_S = lengths_S > layout.ring_slots - config.sliding_window + 1
        self.token_ids_T = torch.from_numpy(step.token_ids)
        self.ngram_ids_TG = torch.from_numpy(step.ngram_ids)
        self.positions_T = torch.from_numpy(step.positions)
        self.sequence_T = torch.from_numpy(self._sequence_T)
        self.tables_SB = torch.from_numpy(step.block_tables)
        self.rope_T2F = {compressed: table(self.positions_T) for compressed, table in ropes.items()}
        self.ring_rows = self._ring_rows()
        self.chunks = [self._chunk(int(s)) for s in np.flatnonzero(self._long_S)]
        self.write_T, self.write_outer_T, self.write_inner_T = self._newest(layout.ring_slots)
        ratios = {source.ratio for source in layout.sources}
        self.entries = {ratio: self._entry_rows(ratio, ropes[True]) for ratio in ratios}
        self.pairs = self._pair_rows() if 2 in ratios else None

    def _ring_rows(self) -> WindowRows | None:
        short_T = ~self._long_S[self._sequence_T]
        if not short_T.any():
            return None
        rows = np.flatnonzero(short_T)
        window = self._config.sliding_window
        wanted_TW = self._step.positions[rows, None] - np.arange(window - 1, -1, -1)
        outer_TW = np.where(wanted_TW >= 0, self._slots_T[rows, None], -1)
        return WindowRows(
            rows_T=None if short_T.all() else torch.from_numpy(rows),
            outer_TW=torch.from_numpy(outer_TW),
            inner_TW=torch.from_numpy(wanted_TW % self._layout.ring_slots),
            mask_TW=torch.from_numpy(wanted_TW >= 0),
        )

    def _chunk(self, sequence: int) -> Chunk:
        start, end = (int(x) for x in self._step.row_starts[sequence : sequence + 2])
        window, first = self._config.sliding_window, int(self._step.positions[start])
        wanted_W = np.arange(first - window + 1, first)
        wanted_TW = np.arange(first, first + end - start)[:, None] - np.arange(window - 1, -1, -1)
        return Chunk(
            start=start,
            end=end,
            outer_W=torch.from_numpy(np.where(wanted_W >= 0, self._step.state_slots[sequence], -1)),
            inner_W=torch.from_numpy(wanted_W % self._layout.ring_slots),
            mask_TW=torch.from_numpy(wanted_TW >= 0),
        )

    def _newest(self, slots: int) -> tuple[Tensor, Tensor, Tensor]:
        """The last `slots` rows of every sequence, and (slot, position mod slots) of each."""
        rows = np.flatnonzero(np.arange(len(self._sequence_T)) >= self._step.row_starts[1:][self._sequence_T] - slots)
        inner = self._step.positions[rows] % slots
        return torch.from_numpy(rows), torch.from_numpy(self._slots_T[rows]), torch.from_numpy(inner)

    def _entry_rows(self, ratio: int, rope: RopeTable) -> EntryRows:
        positions = self._step.positions
        rows = np.flatnonzero(positions % ratio == ratio - 1)
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
        write_T, outer_T, inner_T = self._newest(tail_slots)
        return PairRows(
            partner_E=torch.from_numpy(np.maximum(rows - 1, 0)),
            from_tail_E=torch.from_numpy(rows == self._step.row_starts[self._sequence_T[rows]]),
            tail_outer_E=torch.from_numpy(self._slots_T[rows]),
            tail_inner_E=torch.from_numpy((self._step.positions[rows] - 1) % tail_slots),
            write_T=write_T,
            write_outer_T=outer_T,
            write_inner_T=inner_T,
        )
