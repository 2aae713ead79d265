"""A step's chunks on their way to a graph: pinned numbers, one copy, one buffer that every step reuses.

A header of four numbers (rows, chunks, columns of the block tables, a spare), then one line of numbers for each kind of row
number, each as long as the step's size; then the chunks' tables.

Legend: T rows · C chunks · B blocks of a sequence · K kinds · X numbers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.fused.chunk_plan import ChunkPlan
from deepinfer.model.fused.decode_inputs import PinnedTurns

HEADER = 4
LINES = ("positions", "pair_positions", "sequence", "slot", "floor", "upper_floor", "ring", "place", "first", "store")


@dataclass(frozen=True)
class ChunkSize:
    """What a step with chunks is made for: rows, those of decoding sequences among them, and columns of block tables.

    `shared` as for `StepSize`.
    """

    rows: int
    blocks: int
    shared: int = 0


def line_names(layout: CacheLayout) -> tuple[str, ...]:
    """Kinds of row numbers, by the names that `ChunkPlan` has them under."""
    ratios = sorted({source.ratio for source in layout.sources})
    entries = [f"{name}{ratio}" for ratio in ratios for name in ("entry_rows", "visible")]
    return (*LINES, *entries, *(("tail_to", "partner") if layout.tail_sources else ()))


class ChunkSender:
    """Brings chunks of up to `max_chunks` sequences to `device`."""

    def __init__(self, layout: CacheLayout, max_chunks: int, most: ChunkSize, device: torch.device) -> None:
        self.names, self.max_chunks = line_names(layout), max_chunks
        total = self._tables_at(most.rows) + max_chunks * most.blocks
        self.numbers_X = torch.zeros(total, dtype=torch.int32, device=device)
        self._turns = PinnedTurns(total, device, half=1)

    def send(self, plan: ChunkPlan, tables: np.ndarray, size: ChunkSize) -> None:
        """With the tables [C, B] of its chunks, on the current stream."""
        host, used, count = self._turns.take(), self._tables_at(size.rows), len(plan.arrays["positions"])
        host[:HEADER] = count, *tables.shape, 0
        lines_KT = host[HEADER:used].reshape(len(self.names), size.rows)
        for line_T, name in zip(lines_KT, self.names, strict=True):
            line_T[:count] = plan.arrays[name]
        host[used : used + tables.size] = tables.reshape(-1)
        self._turns.send(self.numbers_X, used + tables.size)

    def send_nothing(self) -> None:
        """No chunks."""
        self._turns.take()[:HEADER] = 0
        self._turns.send(self.numbers_X, HEADER)

    def count(self) -> Tensor:
        """How many rows the chunks have, int32 []."""
        return self.numbers_X[0]

    def lines(self, size: ChunkSize) -> Tensor:
        """[K, T] in the order of `names`; numbers behind the chunks' rows are any."""
        return self.numbers_X[HEADER : self._tables_at(size.rows)].view(len(self.names), size.rows)

    def tables(self, size: ChunkSize) -> Tensor:
        """[max_chunks, B], -1 where a table has no block."""
        chunk_C1, block_B = (
            torch.arange(n, dtype=torch.int32, device=self.numbers_X.device) for n in (self.max_chunks, size.blocks)
        )
        chunk_C1, chunks, columns = chunk_C1.unsqueeze(1), self.numbers_X[1], self.numbers_X[2]
        there_CB = (chunk_C1 < chunks) & (block_B < columns)
        place_CB = torch.where(there_CB, self._tables_at(size.rows) + chunk_C1 * columns + block_B, 0)
        return torch.where(there_CB, self.numbers_X[place_CB], -1)

    def _tables_at(self, rows: int) -> int:
        return HEADER + rows * len(self.names)
