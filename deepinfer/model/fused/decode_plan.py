"""The rows of a decode step as the model takes them, from what the device works out of the compact plan."""

from torch import Tensor

from deepinfer.model.fused.decode_inputs import StepSize
from deepinfer.model.fused.row_plan import RowPlan, Run
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.step_rows import PREFILL_ROWS, Copies, EntryRows, FusedRows, RowMaker
from deepinfer.ops.decode_rows import DecodeNumbers, DecodeShape
from deepinfer.ops.device import DeviceOps


class DecodePlanner:
    """Rows of decode steps for one model: its caches' layout, its ropes, and what is known of the sequences."""

    def __init__(self, ops: DeviceOps, maker: RowMaker, sequences: DeviceSequences, verify_length: int) -> None:
        self.ops, self.maker, self.sequences, self.verify_length = ops, maker, sequences, verify_length

    def __call__(self, plan_X: Tensor, size: StepSize) -> tuple[DecodeNumbers, FusedRows]:
        """Launches only, the same for every plan of a size."""
        numbers = self.numbers(plan_X, size)
        return numbers, self._rows(numbers, size)

    def numbers(self, plan_X: Tensor, size: StepSize) -> DecodeNumbers:
        """The numbers alone. Drafts that are checked are written behind the newest tokens."""
        ropes = self.maker.ropes_P2F
        return self.ops.decode_rows(plan_X, self.sequences.tensors, ropes[False], ropes[True], self._shape(size))

    def _shape(self, size: StepSize) -> DecodeShape:
        config, layout = self.maker.config, self.maker.layout
        return DecodeShape(
            rows=size.rows,
            sequences=size.sequences,
            blocks=size.blocks,
            drafts=size.drafts,
            verify_length=self.verify_length,
            pad=self.sequences.pad,
            ngram=config.engram_max_ngram_size,
            window=config.sliding_window,
            ring_slots=layout.ring_slots,
            tail_slots=layout.tail_slots,
            block_tokens=layout.block_tokens,
            ratios=tuple(sorted({source.ratio for source in layout.sources})),
        )

    def _rows(self, numbers: DecodeNumbers, size: StepSize) -> FusedRows:
        """A decoding sequence never has more rows than its ring has room for, and all of them pass all layers."""
        tails = None if numbers.tail_rows_T is None else Copies(numbers.own_T, numbers.tail_rows_T)
        return FusedRows(
            plan=RowPlan({}, [Run(0, size.rows, False)], 0, size.rows, size.rows),
            token_ids_T=numbers.ngram_ids_TG[:, 0],
            ngram_ids_TG=numbers.ngram_ids_TG,
            own_T=numbers.own_T,
            sequence_T=numbers.sequence_T,
            tables_SB=numbers.tables_SB,
            ropes_T2F={False: numbers.plain_rope_T2F, True: numbers.rope_T2F},
            entries={
                ratio: EntryRows(entry.rows_T, entry.rope_T2F, entry.visible_T)
                for ratio, entry in numbers.entries.items()
            },
            partner_T=numbers.partner_T,
            tails=tails,
            store_T=numbers.ring_rows_T,
            old=None,
            new=None,
            window_rows_TW=numbers.window_rows_TW,
            upper_window_rows_TW=numbers.upper_window_rows_TW,
            kept_T=None,
            rows_together=min(self.verify_length + 1, PREFILL_ROWS) if size.drafts else 1,
        )
