"""Fused models whose experts are spread over ranks that are threads, and the same models alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from fused_models import golden, row_by_row
from small_models import Engine
from thread_peers import ThreadPeers
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.division import RowDivision
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import DeviceOps
from deepinfer.parallel.device_dispatch import MOST_ROWS, DeviceDispatch
from deepinfer.parallel.device_tables import DeviceTables
from deepinfer.parallel.peers import Peers
from deepinfer.parallel.placement import Placement

CONFIG = golden().config
LAYERS, EXPERTS = CONFIG.num_hidden_layers, CONFIG.n_routed_experts
PREFIXES = [f"layers.{i}." for i in range(LAYERS)] + [f"mtp.{i}." for i in range(CONFIG.num_nextn_predict_layers)]


@dataclass(frozen=True)
class FusedSpread:
    """How the golden model is spread; `skewed`: experts that every token of every trunk layer chooses."""

    dtype: str = "bfloat16"
    redundant: int = 0
    reproducible: bool = True
    compact: bool = False
    most_rows: int = MOST_ROWS
    trunk: Placement | None = None
    skewed: tuple[int, ...] = ()

    def layout(self) -> CacheLayout:
        return CacheLayout.of(
            CONFIG,
            dtype=self.dtype,
            block_tokens=16,
            backtrack=6,
            num_draft_layers=CONFIG.num_nextn_predict_layers,
        )

    def dispatch(self, peers: Peers, ops: DeviceOps | None = None) -> DeviceDispatch:
        return DeviceDispatch(
            peers,
            ops or row_by_row(),
            trunk=self.trunk or Placement.initial(LAYERS, EXPERTS, peers.size, self.redundant),
            draft=Placement.initial(CONFIG.num_nextn_predict_layers, CONFIG.dspark_n_routed_experts, peers.size),
            reproducible=self.reproducible,
            dtype=getattr(torch, self.dtype),
            most_rows=self.most_rows,
        )

    def stored(self, dispatch: DeviceDispatch | None = None) -> dict[str, Tensor]:
        """Without experts that are elsewhere."""
        stored = dict(_stored())
        for layer in range(LAYERS):
            name = f"layers.{layer}.ffn.gate.bias"
            stored[name] = stored[name].clone()
            stored[name][list(self.skewed)] += 100.0
        for layer, prefix in enumerate(PREFIXES if dispatch is not None else ()):
            held = dispatch.experts_of(layer)
            for expert in range(EXPERTS if layer < LAYERS else CONFIG.dspark_n_routed_experts):
                if expert not in held:
                    for part in ("w1", "w2", "w3"):
                        del stored[f"{prefix}ffn.experts.{expert}.{part}.weight"]
        return stored

    def bounds(self, size: int) -> list[list[int]]:
        """Where the rows of each rank of so many begin and end in every n-gram table."""
        return [[rows * rank // size for rank in range(size + 1)] for rows in CONFIG.engram_num_embeddings]

    def tables(self, peers: Peers) -> DeviceTables:
        return DeviceTables(peers, self.bounds(peers.size), most_rows=self.most_rows)

    def model(
        self,
        dispatch: DeviceDispatch | None = None,
        ops: DeviceOps | None = None,
        tables: DeviceTables | None = None,
        division: RowDivision | None = None,
    ) -> FusedModel:
        """That of one rank, or the whole one."""
        stored = self.stored(dispatch)
        if tables is not None:
            for layer, edges in zip(CONFIG.engram_layer_ids, tables.bounds):
                first, end = edges[tables.peers.rank : tables.peers.rank + 2]
                for part in ("weight", "scale"):
                    name = f"layers.{layer}.engram.embed.{part}"
                    stored[name] = stored[name][first:end]
        return FusedModel(
            CONFIG,
            stored,
            ops or row_by_row(),
            layout=self.layout(),
            token_classes=golden().engram_classes,
            compact=self.compact,
            max_positions=256,
            dispatch=dispatch,
            tables=tables,
            division=division,
        )


@lru_cache(maxsize=1)
def _stored() -> dict[str, Tensor]:
    return load_stored(golden())


@dataclass
class Rank:
    """One rank's model and caches, and how it goes along with the others."""

    model: FusedModel
    peers: ThreadPeers | None

    def __post_init__(self) -> None:
        self.engine = Engine(self.model, num_slots=6, blocks_per_slot=16, num_snapshots=1)

    @classmethod
    def of(cls, spread: FusedSpread, peers: ThreadPeers | None) -> "Rank":
        dispatch = None if peers is None else spread.dispatch(peers)
        return cls(spread.model(dispatch), peers)

    def shared(self, rows: int) -> int:
        """What all ranks agree on: the rows of the rank with most."""
        if self.peers is None:
            return rows
        return int(self.peers.all_gather(torch.tensor(rows)).max())

    def step(self, *pieces: tuple[list[int], int, int, int], **fields: list[int]) -> Tensor:
        """Hidden rows of a step, or of nobody."""
        rows = self.shared(sum(end - first for _, first, end, _ in pieces))
        if self.model.dispatch is not None:
            self.model.dispatch.begin(rows)
        if pieces:
            return self.engine.step(*pieces, **fields)
        self.model.serve()
        return torch.zeros(0)


Steps = Sequence[Sequence[tuple[int, int, int]]]  # pieces of each step: text and slot, first and end position


def run(rank: Rank, texts: Sequence[list[int]], steps: Steps) -> list[Tensor]:
    return [rank.step(*((texts[t], first, end, t) for t, first, end in pieces)) for pieces in steps]
