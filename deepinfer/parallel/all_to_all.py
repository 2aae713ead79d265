"""Experts on other ranks: rows go out with their routing weights, results come back.

A layer costs three collectives, whatever a rank has to send: how many rows, the rows, the results. One message a row and rank
carries the row (FP8 codes and scales where activations are rounded to them anyway), its slots there, and their weights.
Reproducible: each (row, chosen expert) result comes back by itself and is summed at home in the router's order, which gives
the bits of one process that holds all experts. Otherwise each rank sums what it has of a row first, and less comes back; the
order of the sum then depends on where experts lie, and which copy serves a row on the row alone.

Legend: T rows at home · N rows that travel · M rows that came · P (row, expert) pairs · X chosen experts · D hidden · B bytes.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from deepinfer.model.dispatch import Activation
from deepinfer.model.layer_weights import ExpertWeights
from deepinfer.ops import Ops
from deepinfer.parallel.peers import Peers, Pending
from deepinfer.parallel.placement import Placement, turns_by_content
from deepinfer.parallel.routes import Pairs, Route
from deepinfer.parallel.row_bytes import RowBytes, as_bytes, from_bytes


class AllToAllDispatch:
    """The `ExpertDispatch` of one rank of an expert group; all ranks of it run the same layers in the same order.

    `trunk` and `draft` say which expert lies in which slot. Between two forwards, and on all ranks between the same two,
    `place` moves rows to other slots once the tensors of `unit` were overwritten.
    """

    def __init__(
        self, peers: Peers, ops: Ops, *, trunk: Placement, draft: Placement | None, numerics: str, reproducible: bool
    ) -> None:
        assert all(p.num_ranks == peers.size for p in (trunk, draft) if p is not None), (
            "slots of all ranks of the group"
        )
        self.peers, self.ops, self.reproducible = peers, ops, reproducible
        self.placement, self._draft = trunk, draft
        self.rows = RowBytes(ops, packed=numerics == "full")
        self.count: Callable[[int, Tensor], None] | None = None  # told the experts of this rank's rows in a trunk layer
        self._layers: dict[int, SpreadExperts] = {}

    def layer(self, layer: int, weights: ExpertWeights, activate: Activation) -> "SpreadExperts":
        experts = self.experts_of(layer)
        assert len(weights.w13) == len(weights.w2) == len(experts), "weights of this rank's slots"
        self._layers[layer] = SpreadExperts(self, layer, weights, activate)
        return self._layers[layer]

    def experts_of(self, layer: int) -> tuple[int, ...]:
        placement, row = self.placed(layer)
        return tuple(placement.experts_of(row, self.peers.rank).tolist())

    def placed(self, layer: int) -> tuple[Placement, int]:
        """The placement that a layer belongs to, and its number there."""
        trunk_layers = len(self.placement.expert_LP)
        if layer < trunk_layers:
            return self.placement, layer
        assert self._draft is not None, "draft layers have a placement where something is drafted"
        return self._draft, layer - trunk_layers

    def unit(self, layer: int, slot: int) -> tuple[Tensor, ...]:
        """Everything that is kept of the expert in this rank's slot `slot`, in memory that no other slot shares."""
        weights = self._layers[layer].weights
        return weights.w13[slot], weights.w2[slot]

    def place(self, layer: int, expert_P: np.ndarray) -> None:
        """From the next forward on, rows of trunk layer `layer` find expert `expert_P[s]` in slot s."""
        self.placement = self.placement.with_row(layer, expert_P)


class SpreadExperts:
    """The `LayerDispatch` of one layer."""

    def __init__(self, dispatch: AllToAllDispatch, layer: int, weights: ExpertWeights, activate: Activation) -> None:
        self.dispatch, self.layer, self.weights, self.activate = dispatch, layer, weights, activate
        self.hidden, self.chosen = weights.shared_w2.shape[0], weights.chosen

    def start(self, x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor) -> Callable[[], Tensor]:
        d = self.dispatch
        placement, row = d.placed(self.layer)
        if d.count is not None and placement is d.placement:
            d.count(self.layer, picks_TX)
        slots_TX = placement.slots(row, picks_TX.numpy(), self._turns(picks_TX.numpy()))
        route = Route.of(slots_TX, placement.slots_per_rank, d.peers.size)
        receive = d.peers.all_to_all(torch.tensor(route.counts_R)).tolist()
        rows = d.peers.exchange(self._messages(x_TD, weights_TX, route), route.counts_R, receive)
        return lambda: self._finish(rows, route, receive, x_TD)

    def _turns(self, picks_TX: np.ndarray) -> np.ndarray:
        """By which copies of an expert take rows: one after the other, but where sums depend on which copy it was."""
        if self.dispatch.reproducible:
            return self.dispatch.peers.rank + np.arange(len(picks_TX))
        return turns_by_content(picks_TX)

    def serve(self) -> None:
        """Others' rows, with none of this rank's own."""
        wide = self.weights.gate_ED.dtype
        picks_TX = torch.zeros(0, self.chosen, dtype=torch.int64)
        self.start(self.weights.shared_w2.new_zeros(0, self.hidden), picks_TX, picks_TX.to(wide))()

    def _messages(self, x_TD: Tensor, weights_TX: Tensor, route: Route) -> Tensor:
        """uint8 [N, B]."""
        row_N = torch.from_numpy(route.row_N)
        slots_NX = torch.from_numpy(route.slot_NX.astype(np.int32))
        parts = self.dispatch.rows.pack(x_TD)[row_N], as_bytes(slots_NX), as_bytes(weights_TX[row_N])
        return torch.cat(parts, dim=1)

    def _finish(self, rows: Pending, route: Route, receive: list[int], x_TD: Tensor) -> Tensor:
        d, pairs = self.dispatch, route.pairs()
        results, send = self._serve(rows(), receive, x_TD.dtype)
        counts = pairs.counts_R if d.reproducible else route.counts_R
        back = from_bytes(d.peers.exchange(as_bytes(results), send, counts)(), x_TD.dtype)
        if not d.reproducible:
            return torch.zeros_like(x_TD).index_add_(0, torch.from_numpy(route.row_N), back)
        places_TX = torch.from_numpy(route.places(pairs))
        total_TD = back[places_TX[:, 0]]
        for slot in range(1, self.chosen):
            total_TD += back[places_TX[:, slot]]
        return total_TD

    def _serve(self, messages_MB: Tensor, receive: list[int], dtype: torch.dtype) -> tuple[Tensor, list[int]]:
        """Results of rows that came here, and how many go back to each rank."""
        d, chosen, wide = self.dispatch, self.chosen, self.weights.gate_ED.dtype
        widths = [d.rows.num_bytes(self.hidden, dtype), 4 * chosen, wide.itemsize * chosen]
        rows_MB, slots, weights = messages_MB.split(widths, dim=1)
        slot_MX = from_bytes(slots, torch.int32).to(torch.int64)
        pairs = Pairs.of(slot_MX.numpy(), np.repeat(np.arange(d.peers.size), receive), d.peers.size)
        if not len(pairs.row_P):
            return torch.zeros(0, self.hidden, dtype=dtype), pairs.counts_R
        row_P, pick_P = torch.from_numpy(pairs.row_P), torch.from_numpy(pairs.pick_P)
        x_PD = d.rows.unpack(rows_MB, dtype, row_P)
        weight_P = from_bytes(weights, wide)[row_P, pick_P]
        experts = self.weights.w13, self.weights.w2, self.activate
        out_PD = d.ops.routed_experts(x_PD, slot_MX[row_P, pick_P].unsqueeze(1), weight_P.unsqueeze(1), *experts)
        if d.reproducible:
            return out_PD, pairs.counts_R
        return out_PD.new_zeros(len(messages_MB), self.hidden).index_add_(0, row_P, out_PD), receive
