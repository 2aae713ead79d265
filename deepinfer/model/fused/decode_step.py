"""The forward pass of a step that only decodes: resolved on the device, so that it can be launched before its tokens are known.

The host sends who decodes (one copy); tokens, positions and drafts are `DeviceSequences`'. With graphs all launches behind that
copy are one CUDA graph, captured when a size first comes. Rows, sequences and tables are padded to few sizes; padding belongs
to the padding slot and never changes the bits of other rows.

Legend: T rows · D hidden · F draft features · S sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepinfer.interfaces import StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.decode_inputs import PlanSender, StepSize
from deepinfer.model.fused.decode_plan import DecodePlanner
from deepinfer.model.fused.decode_sizes import LEAST_BLOCKS, default_sizes, power_of_two, shared_size
from deepinfer.model.fused.dispatch import fits_graph
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.row_plan import near_rows
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.state_copies import restore_states, save_states
from deepinfer.model.fused.step_graphs import GraphPool, GraphStats, StepGraphs


@dataclass(frozen=True)
class DecodeRows:
    """A step's rows on the device, sequence after sequence in the plan's order; valid until the next step is launched.

    Rows from `row_starts_S1`[-1] on belong to the padding slot, and so do the sequences behind the plan's. All but hidden
    states and features are int32.
    """

    hidden_TD: Tensor  # before the last norm
    features_TF: Tensor | None
    positions_T: Tensor
    slots_T: Tensor
    ring_rows_T: Tensor  # slot · ring slots + place: a row's own among the rows of any ring
    row_starts_S1: Tensor
    checked_S: Tensor  # drafts in the rows of each sequence
    num_rows_bound: int  # most live rows; T is the size that it was padded to


class DecodeStep:
    """`step(plan)` for plans without chunks.

    `cache` has one slot more than `sequences` runs: the padding slot, its last. At most `verify_length` drafts of a sequence
    are checked (None: all). `features`: whether to return the draft module's inputs. `observe` gets the rows behind the
    layers, for launches of its own that are part of the step. `row_sizes`: to which numbers rows are padded, the default are
    fine steps; sequences and tables are padded to powers of two. With `graphs` (CUDA only) every size becomes a graph.
    `shared`: the most rows, padded, that any rank has in the step, where ranks share experts. This rank's are padded
    to about as many, so that there are hardly more graphs than with one rank; experts alone have room for the rest.
    """

    def __init__(
        self,
        model: FusedModel,
        cache: ModelCache,
        sequences: DeviceSequences,
        *,
        verify_length: int | None = None,
        features: bool = False,
        observe: Callable[[DecodeRows], None] | None = None,
        graphs: bool = False,
        row_sizes: Sequence[int] | None = None,
    ) -> None:
        self.model, self.cache, self.sequences, self.features = model, cache, sequences, features
        self._observe = observe
        self.verify_length = sequences.depth if verify_length is None else min(verify_length, sequences.depth)
        layout, most = model.layout, sequences.num_slots * (1 + self.verify_length)
        _check(model, cache, sequences, self.verify_length, graphs)
        sequences.use(model.ops)
        self.row_sizes = default_sizes(most) if row_sizes is None else sorted({*row_sizes, most})
        self.max_blocks = -(-sequences.max_model_len // layout.block_tokens)
        self._sender = PlanSender(sequences.num_slots, self.max_blocks, sequences.padding_slot, model.device)
        self._planner = DecodePlanner(model.ops, model.rows, sequences, self.verify_length)
        self._results: dict[StepSize, DecodeRows] = {}
        self._num_features = model.num_features
        self._outputs: tuple[Tensor, Tensor] | None = None
        self._graphs = (
            StepGraphs(self._launch, lambda size: self._sender.send(None, size), model.device) if graphs else None
        )
        self.stats = GraphStats() if self._graphs is None else self._graphs.stats

    @torch.inference_mode()
    def __call__(self, plan: StepPlan, shared: int = 0) -> DecodeRows:
        """Launch the step; nothing waits for it."""
        bound = self._bound(plan)
        size = self.size(len(plan.slots), plan.num_drafts, plan.block_tables.shape[1], shared)
        graphs = self._graphs if self._fits(size) else None
        if graphs is not None:
            graphs.capture(size)
        restore_states(self.cache, plan.restores)
        self._sender.send(plan, size)
        if graphs is None:
            self._launch(size)
            self.stats.direct += 1
        else:
            graphs.replay(size)
        save_states(self.cache, plan.slots, plan.snapshots)
        return replace(self._results[size], num_rows_bound=bound)

    def size(self, num_sequences: int, num_drafts: int, num_blocks: int, shared: int = 0) -> StepSize:
        """What a step of so many sequences, drafts to check and columns of block tables is padded to."""
        drafts = min(num_drafts, num_sequences * self.verify_length)
        sequences = min(power_of_two(num_sequences), self.sequences.num_slots)  # they cost next to nothing, graphs do
        rows, shared = shared_size(num_sequences + drafts, self.row_sizes, shared)
        assert num_blocks <= self.max_blocks, (
            f"{num_blocks} columns of block tables, sequences have {self.max_blocks} at most"
        )
        blocks = min(max(LEAST_BLOCKS, power_of_two(num_blocks)), self.max_blocks)
        return StepSize(rows, sequences, blocks, drafts > 0, shared)

    @torch.inference_mode()
    def capture(self, num_sequences: int, num_drafts: int, num_blocks: int, shared: int = 0) -> None:
        """Capture the graph of such steps ahead of the first one. No sequence's state is touched."""
        size = self.size(num_sequences, num_drafts, num_blocks, shared)
        if self._graphs is not None and self._fits(size):
            self._graphs.capture(size)

    @property
    def graph_pool(self) -> GraphPool | None:
        """Memory that graphs of other steps on the same stream may share; None without graphs."""
        return None if self._graphs is None else self._graphs.pool

    @property
    def num_graphs(self) -> int:
        return 0 if self._graphs is None else len(self._graphs)

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        self._results.clear()
        if self._graphs is not None:
            self._graphs.close()

    def _fits(self, size: StepSize) -> bool:
        """Whether such a step may be a graph, as far as what is on other ranks goes."""
        return fits_graph(self.model.elsewhere, max(size.rows, size.shared))

    def _bound(self, plan: StepPlan) -> int:
        assert plan.num_decode == len(plan.slots) > 0, "a decode step has sequences, and no chunks"
        return len(plan.slots) + min(plan.num_drafts, len(plan.slots) * self.verify_length)

    def _launch(self, size: StepSize) -> None:
        """Everything behind the copy of the plan. What it leaves in `_results` stays where it is for every step of the size."""
        numbers, rows = self._planner(self._sender.numbers_X, size)
        if self.model.elsewhere is not None:
            self.model.elsewhere.begin(size.shared or size.rows, numbers.row_starts_S1[-1:])
        out_TD, features_TF = self._room(size.rows)
        hidden_TD = self.model.run_rows(rows, rows, self.cache, features_TF)
        hidden_TD = hidden_TD if out_TD is None else out_TD.copy_(hidden_TD)
        found = self._results[size] = DecodeRows(
            hidden_TD=hidden_TD,
            features_TF=features_TF,
            positions_T=numbers.positions_T,
            slots_T=numbers.slots_T,
            ring_rows_T=numbers.ring_rows_T,
            row_starts_S1=numbers.row_starts_S1,
            checked_S=numbers.checked_S,
            num_rows_bound=size.rows,
        )
        if self._observe is not None:
            self._observe(found)

    def _room(self, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Where hidden states and features go. With graphs: outside of their pool, into buffers of the largest step."""
        if self._graphs is None:
            return None, self._empty(rows, self._num_features) if self.features else None
        if self._outputs is None:
            assert not torch.cuda.is_current_stream_capturing(), "made by the run before the first capture"
            most, columns = self.row_sizes[-1], self._num_features if self.features else 0
            self._outputs = self._empty(most, self.model.config.hidden_size), self._empty(most, columns)
        hidden, features = self._outputs
        return hidden[:rows], features[:rows] if self.features else None

    def _empty(self, rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=self.model.dtype, device=self.model.device)


def _check(model: FusedModel, cache: ModelCache, sequences: DeviceSequences, verify_length: int, graphs: bool) -> None:
    layout = model.layout
    if graphs and model.device.type != "cuda":
        raise ValueError(
            f"graphs=True asks for CUDA graphs, the model is on {model.device}, which has none: give graphs=False"
        )
    assert cache.num_slots == sequences.num_slots + 1, (
        "the cache's last slot is the padding slot, behind the sequences'"
    )
    room = near_rows(model.config, layout)
    assert verify_length < room, (
        f"{verify_length + 1} rows of a sequence, a ring takes {room}: lay it out with more backtrack"
    )
    assert verify_length < layout.tail_slots or not layout.tail_sources, (
        "tails must have a place for every row of a sequence"
    )
    assert sequences.max_model_len <= len(model.rows.ropes_P2F[True]), "the model was made for fewer positions"
