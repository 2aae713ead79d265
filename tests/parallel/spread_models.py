"""Small models whose experts and n-gram tables are spread over ranks that are threads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from small_models import Engine, SmallModel
from thread_peers import ThreadPeers
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.v41 import V41Model
from deepinfer.ops import Ops
from deepinfer.parallel.all_to_all import AllToAllDispatch
from deepinfer.parallel.engram_rows import SpreadTables
from deepinfer.parallel.placement import Placement


@dataclass(frozen=True)
class Spread:
    """How a model is spread over the ranks of one group; `numerics`, `dtype`: what it computes with."""

    ops: Ops
    numerics: str = "full"
    dtype: str = "float32"
    redundant: int = 0
    reproducible: bool = True
    sharded: bool = True
    compact: bool = False
    trunk: Placement | None = None  # instead of the initial one

    def dispatch(self, small: SmallModel, peers: ThreadPeers) -> AllToAllDispatch:
        c, size = small.config, peers.size
        return AllToAllDispatch(
            peers,
            self.ops,
            trunk=self.trunk or Placement.initial(c.num_hidden_layers, c.n_routed_experts, size, self.redundant),
            draft=Placement.initial(c.num_nextn_predict_layers, c.dspark_n_routed_experts, size),
            numerics=self.numerics,
            reproducible=self.reproducible,
        )

    def engine(self, small: SmallModel, peers: ThreadPeers, dispatch: AllToAllDispatch, **layout: int) -> Engine:
        """The model of one rank: its weights lack what other ranks have."""
        bounds = [shares(rows, peers.size) for rows in small.config.engram_num_embeddings]
        tables = SpreadTables(peers, self.ops, bounds, numerics=self.numerics) if self.sharded else None
        model = V41Model(
            small.config,
            own_weights(small, dispatch, peers.rank, bounds if self.sharded else None),
            self.ops,
            numerics=self.numerics,
            dtype=self.dtype,
            layout=CacheLayout.of(
                small.config, numerics=self.numerics, dtype=self.dtype, block_tokens=16, **{"backtrack": 0, **layout}
            ),
            token_classes=small.classes,
            compact=self.compact,
            dispatch=dispatch,
            tables=tables,
        )
        return Engine(model, num_slots=4, blocks_per_slot=16)


def shares(rows: int, size: int) -> list[int]:
    return [rows * rank // size for rank in range(size + 1)]


def own_weights(
    small: SmallModel, dispatch: AllToAllDispatch, rank: int, bounds: Sequence[Sequence[int]] | None
) -> dict[str, Tensor]:
    """The weights without experts of other ranks, and with this rank's rows of the tables alone."""
    c, weights = small.config, dict(small.weights)
    prefixes = [f"layers.{i}." for i in range(c.num_hidden_layers)] + [
        f"mtp.{i}." for i in range(c.num_nextn_predict_layers)
    ]
    for layer, prefix in enumerate(prefixes):
        count = c.n_routed_experts if layer < c.num_hidden_layers else c.dspark_n_routed_experts
        for expert in set(range(count)) - set(dispatch.experts_of(layer)):
            for part in ("w1", "w2", "w3"):
                del weights[f"{prefix}ffn.experts.{expert}.{part}.weight"]
    for layer, edges in zip(c.engram_layer_ids, bounds or ()):
        name = f"layers.{layer}.engram.embed.weight"
        weights[name] = weights[name][edges[rank] : edges[rank + 1]]
    return weights


def skewed(small: SmallModel, experts: Sequence[int]) -> SmallModel:
    """Every token of every trunk layer chooses these experts."""
    weights = dict(small.weights)
    for layer in range(small.config.num_hidden_layers):
        name = f"layers.{layer}.ffn.gate.bias"
        weights[name] = weights[name].clone()
        weights[name][np.array(experts)] += 100.0
    return replace(small, weights=weights)
