"""How many blocks running answers need, and how they get them: at others' cost where none is free."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.sequences import DECODE, SequenceTable

if TYPE_CHECKING:
    from deepinfer.cache.block_pool import IndexPool

MARGIN_TOKENS = 16  # a running answer this close to its next block counts as needing it when others are admitted


class BlockGrowth:
    """Hands blocks of a pool to the decoding sequences of a table. `decoding` is always int64 [D] of slots."""

    def __init__(self, table: SequenceTable, blocks: IndexPool, limits: EngineLimits) -> None:
        self._table, self._blocks, self._limits = table, blocks, limits

    def grow(self, decoding: np.ndarray, make_room: Callable[[], None]) -> None:
        """Every running answer gets the blocks of the rows it may have in the next step.

        `make_room` takes the blocks of a victim, perhaps one of the `decoding`, which then gets none.
        """
        table, blocks = self._table, self._blocks
        if not len(decoding):
            return
        lacking = decoding[self._reach(decoding) > table.capacity_tokens[decoding]]
        if not len(lacking):
            return
        missing = self._missing(lacking)
        if missing.max() == 1 and len(lacking) <= blocks.num_free:
            table.block_tables[lacking, table.num_blocks[lacking]] = blocks.allocate(len(lacking))
            table.num_blocks[lacking] += 1
            table.capacity_tokens[lacking] += self._limits.block_tokens
            return
        for slot in best_first(table, lacking):
            count = int(self._missing(np.array([slot]))[0])
            while table.stage[slot] == DECODE and blocks.num_free < count:
                make_room()
            if table.stage[slot] == DECODE:
                table.give_blocks(slot, blocks.allocate(count), self._limits.block_tokens)

    def margin(self, decoding: np.ndarray) -> int:
        """Blocks to leave free at an admission: running answers will take them within the next few steps."""
        table = self._table
        ahead = MARGIN_TOKENS + self._limits.draft_depth
        return int((table.num_tokens[decoding] + ahead > table.capacity_tokens[decoding]).sum())

    def _reach(self, slots: np.ndarray) -> np.ndarray:
        """Tokens that may be in the caches of `slots` after the next step: an upper bound."""
        table, depth = self._table, self._limits.draft_depth
        reach = table.num_tokens[slots] + table.pending[slots] * (1 + depth) + depth
        return np.minimum(reach, table.length_end[slots] - 1)

    def _missing(self, slots: np.ndarray) -> np.ndarray:
        return -(-self._reach(slots) // self._limits.block_tokens) - self._table.num_blocks[slots]


def best_first(table: SequenceTable, slots: np.ndarray) -> list[int]:
    """By priority, then the oldest first."""
    order = np.lexsort((table.arrival[slots], -table.priority[slots]))
    return [int(slot) for slot in slots[order]]
