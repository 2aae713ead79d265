"""The forward pass of a step with chunks of prompts as one CUDA graph, resolved on the device as a decode step is.

The host sends who decodes, and the row numbers of the chunks: two copies into buffers that stay; the graph begins behind them.
Rows are padded to few sizes; padding belongs to the padding slot and never changes the bits of other rows.

Legend: T rows · D hidden · F draft features.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deepinfer.interfaces import StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.chunk_inputs import ChunkSender, ChunkSize
from deepinfer.model.fused.chunk_plan import ChunkPlan, chunk_input, passes_whole, plan_chunks
from deepinfer.model.fused.decode_inputs import PlanSender
from deepinfer.model.fused.decode_plan import DecodePlanner
from deepinfer.model.fused.decode_sizes import LEAST_BLOCKS, shared_size
from deepinfer.model.fused.decode_step import DecodeRows
from deepinfer.model.fused.dispatch import fits_graph
from deepinfer.model.fused.memory_errors import is_out_of_memory
from deepinfer.model.fused.mixed_rows import MixedRowMaker
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.state_copies import WindowRows, restore_states, save_states
from deepinfer.model.fused.step_graphs import GraphPool, GraphStats, StepGraphs

MORE_BLOCKS = 4  # times as many columns of tables has the next graph of as many rows
SIZES = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)  # rows


def chunk_sizes(most: int) -> list[int]:
    """Sizes up to `most` rows, the last at least that where there is one."""
    return [size for before, size in zip((0, *SIZES), SIZES) if before < most]


def spare_states(row_sizes: Sequence[int], ring_slots: int) -> int:
    """States that a cache needs besides so that steps of these sizes (rising) find their spare rows."""
    return -(-row_sizes[-1] // ring_slots) if row_sizes else 0


class ChunkStep:
    """`step(plan)` for plans that it `takes`; `row_sizes` (rising): to which numbers rows are padded.

    The cache's last slot is the padding slot, and it has spare states for the largest size. At most `verify_length` drafts of a
    sequence are checked (None: all). `features`, `observe`, `shared`: as for `DecodeStep`; `observe` is told of rings' rows and
    of spare rows alike. With `graphs` (CUDA only) every size becomes a graph, in memory of `pool`.
    """

    def __init__(
        self,
        model: FusedModel,
        cache: ModelCache,
        sequences: DeviceSequences,
        *,
        row_sizes: Sequence[int],
        verify_length: int | None = None,
        features: bool = False,
        observe: Callable[[DecodeRows], None] | None = None,
        graphs: bool = False,
        pool: GraphPool | None = None,
    ) -> None:
        self.model, self.cache, self.sequences, self.row_sizes = model, cache, sequences, list(row_sizes)
        layout, rows, slots = model.layout, self.row_sizes[-1], sequences.num_slots
        assert rows <= cache.num_spare * layout.ring_slots, f"steps of {rows} rows need as many spare rows"
        self.verify_length = sequences.depth if verify_length is None else min(verify_length, sequences.depth)
        self.max_blocks = -(-sequences.max_model_len // layout.block_tokens)
        self._observe = observe
        self._plans = PlanSender(slots, self.max_blocks, sequences.padding_slot, model.device, half=1)
        self._chunks = ChunkSender(layout, slots, ChunkSize(rows, self.max_blocks), model.device)
        planner = DecodePlanner(model.ops, model.rows, sequences, self.verify_length)
        self._rows = MixedRowMaker(planner, self._plans, self._chunks, rows)
        self._windows = WindowRows(cache, layout.num_window_layers if features else model.config.num_hidden_layers)
        self._num_features = model.num_features if features else 0
        self._hidden_TD = self._empty(rows, model.config.hidden_size)
        self._refused: set[ChunkSize] = set()
        self._graphs: StepGraphs[ChunkSize] | None = None
        if graphs:
            self._graphs = StepGraphs(self._launch, self._send_nothing, model.device, "a step with chunks", pool)
        self.stats = GraphStats() if self._graphs is None else self._graphs.stats

    @property
    def num_graphs(self) -> int:
        return 0 if self._graphs is None else len(self._graphs)

    def takes(self, plan: StepPlan, shared: int = 0) -> bool:
        """Whether the step finds room, and ranks do not share its rows. The first of a size is captured, which takes a while
        and waits; a size that there is no memory for is left alone from then on."""
        rows, division = self._bound(plan), self.model.division
        if rows > self.row_sizes[-1] or (self.model.compact and not passes_whole(plan)):
            return False
        if division is not None and division.divides(plan.chunk_rows):
            return False
        return self.capture(rows, plan.block_tables.shape[1], shared)

    @torch.inference_mode()
    def capture(self, num_rows: int, num_blocks: int, shared: int = 0) -> bool:
        """Capture the graph of such steps ahead of the first one; False where memory does not suffice."""
        size = self.size(num_rows, num_blocks, shared)
        if self._graphs is None or self._graphs.has(size) or not self._fits(size):
            return True
        if size in self._refused:
            return False
        try:
            self._graphs.capture(size)
        except RuntimeError as fault:
            if not is_out_of_memory(fault):
                raise
        if not self._graphs.has(size):
            self._refused.add(size)
        return size not in self._refused

    @torch.inference_mode()
    def __call__(self, plan: StepPlan, shared: int = 0) -> Tensor:
        """Launch the step; nothing waits for it. Hidden states [T, D] before the last norm, in a buffer of the largest size:
        decoding sequences' rows, then the chunks', in the plan's order; valid until the next step."""
        size, step = self.size(self._bound(plan), plan.block_tables.shape[1], shared), chunk_input(plan)
        self.model.rows.check_positions(step)
        chunks = plan_chunks(step, self.model.config, self.model.layout, self.cache)
        of_chunk = plan.snapshots[:, 0] >= plan.num_decode
        restore_states(self.cache, plan.restores)
        save_states(self.cache, plan.slots, plan.snapshots[of_chunk])  # as the chunk's rows find them
        self.sequences.put_chunks(step.state_slots, plan.chunk_starts, plan.chunk_rows, plan.chunk_tokens)
        self._send(plan, chunks, size)
        if self._graphs is None or not self._fits(size):
            self._launch(size)
            self.stats.direct += 1
        else:
            self._graphs.replay(size)
        self._windows.move(chunks.moved_from, chunks.moved_to)
        save_states(self.cache, plan.slots, plan.snapshots[~of_chunk])
        return self._hidden_TD

    def size(self, num_rows: int, num_blocks: int, shared: int = 0) -> ChunkSize:
        """What a step of so many rows and columns of block tables is padded to."""
        blocks = LEAST_BLOCKS
        while blocks < num_blocks:
            blocks *= MORE_BLOCKS
        rows, shared = shared_size(num_rows, self.row_sizes, shared)
        return ChunkSize(rows, min(blocks, self.max_blocks), shared)

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        if self._graphs is not None:
            self._graphs.close()

    def _fits(self, size: ChunkSize) -> bool:
        return fits_graph(self.model.elsewhere, max(size.rows, size.shared))

    def _bound(self, plan: StepPlan) -> int:
        """Most rows that the step may have."""
        drafts = min(plan.num_drafts, plan.num_decode * self.verify_length)
        return plan.num_decode + drafts + plan.num_chunk_rows

    def _send(self, plan: StepPlan, chunks: ChunkPlan, size: ChunkSize) -> None:
        self._plans.send(_decoding(plan), self._rows.decode_size(size))
        self._chunks.send(chunks, plan.block_tables[plan.num_decode :], size)

    def _send_nothing(self, size: ChunkSize) -> None:
        self._plans.send(None, self._rows.decode_size(size))
        self._chunks.send_nothing()

    def _launch(self, size: ChunkSize) -> None:
        """Everything behind the copies."""
        made = self._rows(size)
        features_TF = self._empty(size.rows, self._num_features) if self._num_features else None
        if self.model.elsewhere is not None:
            live_1 = made.numbers.row_starts_S1[-1:] + self._chunks.count()
            self.model.elsewhere.begin(size.shared or size.rows, live_1)
        hidden_TD = self._hidden_TD[: size.rows]
        hidden_TD.copy_(self.model.run_rows(made.rows, made.rows, self.cache, features_TF))
        if self._observe is not None:
            self._observe(
                DecodeRows(
                    hidden_TD=hidden_TD,
                    features_TF=features_TF,
                    positions_T=made.position_T,
                    slots_T=made.slot_T,
                    ring_rows_T=made.store_T,
                    row_starts_S1=made.numbers.row_starts_S1,
                    checked_S=made.numbers.checked_S,
                    num_rows_bound=size.rows,
                )
            )

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=self.model.dtype, device=self.model.device)


def _decoding(plan: StepPlan) -> StepPlan:
    """Who decodes, as a step of their own."""
    count = plan.num_decode
    parts = ("slots", "block_tables", "window_from", "upper_from", "write_from")
    return replace(plan, **{name: getattr(plan, name)[:count] for name in parts})
