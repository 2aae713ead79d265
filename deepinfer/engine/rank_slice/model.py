"""The fused model of one rank's share, with invented weights, and its draft module where it drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.engine.rank_slice.experts import FoldedExperts, Pairs, Routing
from deepinfer.engine.rank_slice.share import RankShare, share_config
from deepinfer.engine.rank_slice.weights import DummyShare
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sublayers import FusedExperts
from deepinfer.ops.device import DeviceOps


class Routed(NamedTuple):
    """Pairs of a trunk layer's experts, and of a draft layer's."""

    trunk: Pairs
    drafts: Pairs


@dataclass(frozen=True, kw_only=True)
class SliceModel:
    """`model` runs the rank's rows through all layers, `drafter` its blocks; `config` is the whole model's."""

    model: FusedModel
    drafter: FusedDSpark | None
    config: V41Config
    share: RankShare

    def route(self, routing: Routing) -> Routed:
        """From now on experts get pairs as `routing` says."""
        c, device = self.config, self.model.device
        trunk = Pairs(self.share.ranks, c.n_routed_experts, c.num_experts_per_tok, routing, device)
        drafts = Pairs(self.share.ranks, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok, routing, device)
        self._give(trunk, [layer.experts for layer in self.model.layers])
        if self.drafter is not None:
            self._give(drafts, [layer.experts for layer in self.drafter.layers])
        return Routed(trunk, drafts)

    def _give(self, pairs: Pairs, layers: list[FusedExperts]) -> None:
        for experts in layers:
            assert isinstance(experts, FoldedExperts)
            experts.pairs = pairs


def slice_model(
    config: V41Config,
    share: RankShare,
    ops: DeviceOps,
    layout: CacheLayout,
    device: torch.device,
    *,
    compact: bool,
    max_positions: int,
    seed: int = 0,
) -> SliceModel:
    """Build the share of one rank; `config` and `layout` are the whole model's. Drafts where `layout` has rings for it.

    Peak: the share and its largest layer once more.
    """
    local, stored = share_config(config, share), DummyShare(config, share, device, seed)
    model = FusedModel(
        local,
        stored,
        ops,
        layout=layout,
        device=device,
        token_classes=np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size,
        compact=compact,
        max_positions=max_positions,
        host_tables=share.host_tables,
    )
    balanced = Pairs(share.ranks, config.n_routed_experts, config.num_experts_per_tok, "balanced", device)
    model.layers = [replace(layer, experts=_folded(layer.experts, balanced)) for layer in model.layers]
    drafter = None
    if layout.num_window_layers > config.num_hidden_layers:
        drafter = FusedDSpark(local, stored, ops, model, layout=layout)
        for layer in drafter.layers:
            layer.experts = _folded(layer.experts, balanced)
    made = SliceModel(model=model, drafter=drafter, config=config, share=share)
    made.route("balanced")
    return made


def _folded(experts: FusedExperts, pairs: Pairs) -> FoldedExperts:
    return FoldedExperts(experts.config, experts.ops, experts.weights, pairs)
