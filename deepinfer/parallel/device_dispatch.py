"""Experts on other ranks for the fused model: what all layers share, and which way rows take.

Steps of up to `most_rows` rows take buffers of fixed size, longer ones splits that the host reads. All ranks know which, since
they agreed upon the rows of a step.

Legend: T rows · X chosen experts of a row · D hidden · P slots of all ranks · M rows that came · B bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from deepinfer.formats.scales import working_dtype
from deepinfer.model.fused.dispatch import Parts, Routed
from deepinfer.model.fused.rehearsal import is_rehearsal
from deepinfer.model.fused.stored_weights import FusedExpertWeights
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.expert_permutation import Permutation
from deepinfer.parallel.fixed_dispatch import FixedStep
from deepinfer.parallel.peers import Peers
from deepinfer.parallel.placement import Placement
from deepinfer.parallel.progress import Progress
from deepinfer.parallel.rehearsed_peers import RehearsedPeers
from deepinfer.parallel.row_messages import NOBODY, RowMessages
from deepinfer.parallel.slot_table import NOBODYS, TURNS, SlotTable, turns_by_content
from deepinfer.parallel.split_dispatch import SplitStep

MOST_ROWS = 2048  # of the largest chunk that is a graph
MOST_ARRIVING = 8192  # rows of all ranks together for which there is room: work and memory of every rank grow with them


class DeviceDispatch:
    """The `FusedDispatch` of one rank of an expert group; `peers` talk where the model computes, `device`.

    `trunk`, `draft`, `unit`, `place`, `count` as for `AllToAllDispatch`; `count` is told besides which rows are live. `dtype`
    is the model's. Steps of more than `most_rows` rows take exact numbers; None: as many as all ranks together have room for.
    Before anything is captured all ranks run a step without a graph, in which a device's group connects: `serve` will do.
    """

    def __init__(
        self,
        peers: Peers,
        ops: DeviceOps,
        *,
        trunk: Placement,
        draft: Placement | None,
        reproducible: bool,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        most_rows: int | None = None,
    ) -> None:
        placements = [trunk] if draft is None else [trunk, draft]
        assert all(p.num_ranks == peers.size for p in placements), "slots of all ranks of the group"
        self.ops, self.reproducible, self.dtype = ops, reproducible, dtype
        most = max(1, min(MOST_ROWS, MOST_ARRIVING // peers.size))
        self.device, self.most_rows = torch.device(device), most if most_rows is None else most_rows
        self.count: Callable[[int, Tensor, Tensor], None] | None = None
        self._peers, self._rehearsed = peers, RehearsedPeers(peers.rank, peers.size)
        self._tables = [SlotTable(placement, self.device) for placement in placements]
        self._layers: dict[int, DeviceExperts] = {}
        self._turn_C1 = torch.empty(0, 1, dtype=torch.int32, device=self.device)
        self._step: FixedStep | SplitStep = self._split()
        self.progress = Progress(self.device)

    @property
    def placement(self) -> Placement:
        """Of the trunk's layers."""
        return self._tables[0].placement

    @property
    def peers(self) -> Peers:
        return self._rehearsed if is_rehearsal() else self._peers

    @property
    def step(self) -> FixedStep | SplitStep:
        """The one that was begun last."""
        return self._step

    def begin(self, rows: int, live_1: Tensor | None = None) -> None:
        row_C1 = torch.arange(rows, dtype=torch.int32, device=self.device).unsqueeze(1)
        turn_C1 = (row_C1 + self._peers.rank) % TURNS
        self._turn_C1 = turn_C1 if live_1 is None else torch.where(row_C1 < live_1, turn_C1, NOBODYS)
        if rows > self.most_rows:
            self._step = self._split()
            return
        self._step = FixedStep(
            rows, self._peers.size, device=self.device, reproducible=self.reproducible, combine=self.ops.combine
        )

    def _split(self) -> SplitStep:
        return SplitStep(reproducible=self.reproducible, combine=self.ops.combine)

    def layer(self, layer: int, weights: FusedExpertWeights, routed: Routed) -> "DeviceExperts":
        table, _ = self.placed(layer)
        assert weights.num_experts == table.placement.slots_per_rank, "weights of this rank's slots"
        self._layers[layer] = DeviceExperts(self, layer, weights, routed)
        return self._layers[layer]

    def experts_of(self, layer: int) -> tuple[int, ...]:
        table, number = self.placed(layer)
        return tuple(table.placement.experts_of(number, self._peers.rank).tolist())

    def placed(self, layer: int) -> tuple[SlotTable, int]:
        """The table that a layer belongs to, and its number there."""
        trunk_layers = len(self.placement.expert_LP)
        if layer < trunk_layers:
            return self._tables[0], layer
        assert len(self._tables) > 1, "draft layers have a placement where something is drafted"
        return self._tables[1], layer - trunk_layers

    def slots(self, layer: int, picks_TX: Tensor) -> Tensor:
        """int32 [T, X], through all ranks; -1 for rows of padding."""
        table, number = self.placed(layer)
        rows = len(picks_TX)
        assert rows <= len(self._turn_C1), f"{rows} rows in a step that was begun for {len(self._turn_C1)}"
        turn_T1 = self._turn_C1[:rows]
        if self.count is not None and table is self._tables[0]:
            self.count(layer, picks_TX.long(), turn_T1 < TURNS)
        if table.has_copies and not self.reproducible:  # where sums depend on who serves a row, its company must not
            turn_T1 = torch.where(turn_T1 < TURNS, turns_by_content(picks_TX).int(), turn_T1)
        return table(number, picks_TX, turn_T1)

    def unit(self, layer: int, slot: int) -> Sequence[Tensor]:
        """Everything that is kept of the expert in this rank's slot `slot`: what has a part for each expert, E by its name."""
        weights = self._layers[layer].weights
        kept = [(field.name, getattr(w, field.name)) for w in (weights.w13, weights.w2) for field in fields(w)]  # type: ignore[arg-type]
        return [tensor[slot] for name, tensor in kept if name.rpartition("_")[2].startswith("E")]

    def place(self, layer: int, expert_P: np.ndarray) -> None:
        self._tables[0].place(layer, expert_P)


class DeviceExperts:
    """The `FusedLayerDispatch` of one layer."""

    def __init__(self, dispatch: DeviceDispatch, layer: int, weights: FusedExpertWeights, routed: Routed) -> None:
        self.dispatch, self.layer, self.weights, self._routed = dispatch, layer, weights, routed
        hidden = weights.gate_ED.shape[1]
        self.messages = RowMessages(hidden, weights.chosen, dispatch.dtype, working_dtype(dispatch.dtype))
        width = self.messages.num_bytes
        self._nobody_1B = torch.full((1, width), NOBODY, dtype=torch.uint8, device=dispatch.device)

    def start(self, quantised_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor) -> Callable[[], Parts]:
        d = self.dispatch
        slots_TX = d.slots(self.layer, picks_TX)
        message_TB = self.messages.pack(d.ops, quantised_TD, slots_TX, weights_TX)
        d.progress.begin()
        ends = d.step.start(d.peers, message_TB, slots_TX, self.weights.num_experts, self._serve)

        def finish() -> Parts:
            parts = ends()
            d.progress.end()
            return parts

        return finish

    def serve(self) -> None:
        d = self.dispatch
        d.progress.begin()
        d.step.serve(d.peers, self._nobody_1B, self.weights.chosen, self._serve)
        d.progress.end()

    def _serve(self, rows_MB: Tensor) -> tuple[Tensor, Permutation]:
        """Results of what came here."""
        d, here, messages = self.dispatch, self.weights.num_experts, self.messages
        pairs = d.ops.expert_permutation(
            messages.slots(rows_MB), here, d.peers.rank * here, weights_TX=messages.weights(rows_MB)
        )
        return self._routed(messages.numbers(rows_MB), pairs), pairs
