"""The rows of a step with chunks, on the device: those of decoding sequences as it resolves them, and the chunks' behind them.

How many rows the decoding sequences have only the device knows, so that the chunks' numbers are shifted there.

Legend: T rows · S decoding sequences · C chunks · K kinds of numbers · G n-gram slots.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.model.fused.chunk_inputs import ChunkSender, ChunkSize
from deepinfer.model.fused.decode_inputs import PlanSender, StepSize
from deepinfer.model.fused.decode_plan import DecodePlanner
from deepinfer.model.fused.row_plan import RowPlan, Run
from deepinfer.model.fused.step_rows import PREFILL_ROWS, FusedRows
from deepinfer.ops.decode_rows import HEADER, DecodeNumbers


class MixedRows(NamedTuple):
    """`slot_T` is the padding slot's where a row is nobody's; `store_T` where a row's window key goes, a spare row for some."""

    rows: FusedRows
    numbers: DecodeNumbers
    position_T: Tensor
    slot_T: Tensor
    store_T: Tensor


class MixedRowMaker:
    """Rows of steps of a size, from what was sent of decoding sequences and of chunks."""

    def __init__(self, planner: DecodePlanner, plans: PlanSender, chunks: ChunkSender, most_rows: int) -> None:
        self._planner, self._plans, self._chunks = planner, plans, chunks
        self._own = torch.arange(most_rows, dtype=torch.int32, device=plans.device)

    def decode_size(self, size: ChunkSize) -> StepSize:
        """Of the decoding sequences' part: any number of them, and drafts, so that the step has one size."""
        return StepSize(size.rows, self._plans.max_sequences, size.blocks, self._planner.verify_length > 0)

    def __call__(self, size: ChunkSize) -> MixedRows:
        """Launches only, the same for every step of a size."""
        numbers = self._planner.numbers(self._plans.numbers_X, self.decode_size(size))
        own_T, num_decode_rows = self._own[: size.rows], numbers.row_starts_S1[-1]
        behind_T = own_T - num_decode_rows
        in_chunk_T = (behind_T >= 0) & (behind_T < self._chunks.count())
        chunk_KT = self._chunks.lines(size).index_select(1, torch.where(in_chunk_T, behind_T, 0))
        found = dict(
            zip(self._chunks.names, torch.where(in_chunk_T, chunk_KT, self._decode_lines(numbers)), strict=True)
        )
        found["sequence"] = found["sequence"] + in_chunk_T.int() * len(numbers.tables_SB)
        if "partner" in found:
            beside_T = in_chunk_T & (found["partner"] >= 0)
            found |= {
                "partner": found["partner"] + torch.where(beside_T, num_decode_rows, 0),
                "tail_from": own_T,
            }
        ngram_TG = self._ngrams(found["slot"], found["positions"])
        found |= {"token_ids": ngram_TG[:, 0], "ngram_ids": ngram_TG, "own": own_T}
        found["tables"] = torch.cat((numbers.tables_SB, self._chunks.tables(size)))
        plan = RowPlan({}, [Run(0, size.rows, False)], 0, size.rows, size.rows)
        rows = replace(self._planner.maker.rows_of(plan, found), rows_together=PREFILL_ROWS)
        return MixedRows(rows, numbers, found["positions"], found["slot"], found["store"])

    def _decode_lines(self, numbers: DecodeNumbers) -> Tensor:
        """[K, T] of decoding sequences and of padding, whose window keys all go to their own ring."""
        layout, position_T, slot_T = self._planner.maker.layout, numbers.positions_T, numbers.slots_T
        count = len(numbers.tables_SB)
        floors_3S = self._plans.numbers_X[HEADER : HEADER + 4 * count].view(4, count)[1:3]
        floor_T, upper_T = floors_3S.index_select(1, numbers.sequence_T)
        lines = {
            "positions": position_T,
            "pair_positions": position_T // 2 * 2,
            "sequence": numbers.sequence_T,
            "slot": slot_T,
            "floor": floor_T,
            "upper_floor": torch.where(position_T >= upper_T, torch.maximum(upper_T, floor_T), floor_T),
            "ring": slot_T * layout.ring_slots,
            "place": torch.full_like(position_T, -1),
            "first": torch.zeros_like(position_T),
            "store": numbers.ring_rows_T,
        }
        for ratio, entry in numbers.entries.items():
            lines |= {f"entry_rows{ratio}": entry.rows_T, f"visible{ratio}": entry.visible_T}
        if numbers.tail_rows_T is not None and numbers.partner_T is not None:
            lines |= {"tail_to": numbers.tail_rows_T, "partner": numbers.partner_T}
        return torch.stack([lines[name] for name in self._chunks.names])

    def _ngrams(self, slot_T: Tensor, position_T: Tensor) -> Tensor:
        """[T, G] of a row's own and earlier tokens, -1 before its sequence. Chunks' tokens are there already."""
        sequences = self._planner.sequences
        size = self._planner.maker.config.engram_max_ngram_size
        back_G = torch.arange(size, dtype=torch.int32, device=position_T.device)
        return sequences.tokens_NL[slot_T.unsqueeze(1), position_T.unsqueeze(1) + (sequences.pad - back_G)]
