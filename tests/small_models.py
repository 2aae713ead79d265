"""Small models for tests: the golden one, one of K6's shape with invented weights, and steps made from plain token lists."""

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config, parse_config
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.dummy import dummy_weights
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights
from deepinfer.model.dense import DenseModel
from deepinfer.model.v41 import V41Model
from deepinfer.ops import Ops

FIXTURES = Path(__file__).parent / "fixtures"
Piece = tuple[list[int], int, int, int, list[int]]  # all tokens of a sequence, first and end position, slot, its blocks


@dataclass(frozen=True)
class SmallModel:
    config: V41Config
    weights: dict[str, Tensor]
    classes: np.ndarray

    def dense(self, numerics: str, dtype: str) -> DenseModel:
        return DenseModel(
            self.config, self.weights, token_classes=self.classes, numerics=numerics, dtype=getattr(torch, dtype)
        )

    def engine(
        self,
        ops: Ops,
        numerics: str,
        dtype: str,
        *,
        block_tokens: int = 16,
        backtrack: int = 0,
        num_draft_layers: int = 0,
        compact: bool = False,
        num_snapshots: int = 0,
    ) -> "Engine":
        layout = CacheLayout.of(
            self.config,
            numerics=numerics,
            dtype=dtype,
            block_tokens=block_tokens,
            backtrack=backtrack,
            num_draft_layers=num_draft_layers,
        )
        model = V41Model(
            self.config,
            self.weights,
            ops,
            numerics=numerics,
            dtype=dtype,
            layout=layout,
            token_classes=self.classes,
            compact=compact,
        )
        return Engine(model, num_snapshots=num_snapshots)


class Engine:
    """A model with a cache full of NaN bytes, fed by hand. Sequence `slot` owns the blocks that `table` gives it."""

    def __init__(
        self, model: V41Model, *, num_slots: int = 8, blocks_per_slot: int = 64, num_snapshots: int = 0
    ) -> None:
        self.model, self.blocks_per_slot = model, blocks_per_slot
        self.cache = ModelCache(
            model.config,
            model.layout,
            num_blocks=num_slots * blocks_per_slot,
            num_slots=num_slots,
            num_snapshots=num_snapshots,
        )
        self.forget()

    def forget(self) -> None:
        self.cache.fill_nan(list(range(self.cache.num_blocks)))
        self.cache.fill_nan_slots(list(range(len(self.cache.state))))

    def table(self, slot: int) -> list[int]:
        """Blocks of a slot, out of order on purpose."""
        blocks = [slot * self.blocks_per_slot + b for b in range(self.blocks_per_slot)]
        return blocks[::-1] if slot % 2 else blocks[1:] + blocks[:1]

    def step(self, *pieces: tuple[list[int], int, int, int], **fields: list[int] | list[list[int]]) -> Tensor:
        """Hidden rows of one step; a piece is (tokens, first position, end position, slot). `fields` of StepInput besides."""
        step = make_step([(*piece, self.table(piece[3])) for piece in pieces])
        arrays = {name: np.array(values, dtype=np.int64) for name, values in fields.items()}
        if "upper_from" in arrays:
            arrays["sample_rows"] = np.zeros(0, dtype=np.int64)  # rows that are dropped may not be sampled
        return self.model.forward(replace(step, **arrays), self.cache)

    def run(self, tokens: list[int], cuts: list[int], slot: int = 0, start: int = 0, **fields: int) -> Tensor:
        """Hidden rows of a sequence fed in steps that end at `cuts`, from `start` on. `fields` as for `step`."""
        ends = [*cuts, len(tokens)]
        floors = {name: [value] for name, value in fields.items()}
        return torch.cat([self.step((tokens, a, b, slot), **floors) for a, b in zip([start, *cuts], ends) if a < b])

    def visible(self, slot: int, length: int, window_from: int = 0, layers: int | None = None) -> dict[str, Tensor]:
        """Copies of all that rows from position `length` on may see: ring rows of the first `layers` layers, entries, tails.

        As bytes, so that even NaN equals itself.
        """
        cache, layout, table = self.cache, self.model.layout, torch.tensor(self.table(slot))
        newest = np.arange(max(window_from, length - self.model.config.sliding_window + 1), length)
        rings = enumerate(cache.rings[:layers])
        seen = {f"ring {layer}": ring[slot, newest % layout.ring_slots] for layer, ring in rings}
        for source in layout.sources:
            entries = torch.arange(length // source.ratio)
            place = (table[entries // source.entries], entries % source.entries)
            seen[f"main {source.layer}"] = cache.main_rows[source.layer][place]
            seen[f"index {source.layer}"] = cache.index_rows[source.layer][place]
        if length % 2:
            for layer, tail in cache.tails.items():
                seen[f"tail {layer}"] = tail[slot, [(length - 1) % layout.tail_slots]]
        return {name: rows.contiguous().view(torch.uint8) for name, rows in seen.items()}

    def greedy(self, tokens: list[int], count: int, slot: int = 0) -> list[int]:
        """`count` most likely tokens after a prompt."""
        tokens, first = list(tokens), 0
        for _ in range(count):
            hidden = self.step((tokens, first, len(tokens), slot))
            first = len(tokens)
            tokens.append(int(self.model.logits(hidden[-1:]).argmax()))
        return tokens[-count:]


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names under which two `visible` states differ."""
    assert one.keys() == other.keys()
    return [name for name, rows in one.items() if not torch.equal(rows, other[name])]


def make_step(pieces: list[Piece]) -> StepInput:
    """A flat step of several sequences' pieces."""
    widest = max(len(table) for *_, table in pieces)
    token_ids, positions, ngrams, starts = [], [], [], [0]
    for tokens, first, end, _, _ in pieces:
        for p in range(first, end):
            token_ids.append(tokens[p])
            positions.append(p)
            ngrams.append([tokens[p - r] if p >= r else -1 for r in range(4)])
        starts.append(len(token_ids))
    tables = [table + [-1] * (widest - len(table)) for *_, table in pieces]
    columns = (token_ids, positions, ngrams, starts, [slot for *_, slot, _ in pieces], tables, range(len(token_ids)))
    return StepInput(*(np.array(column, dtype=np.int64) for column in columns))


@lru_cache(maxsize=1)
def golden_model() -> SmallModel:
    checkpoint = open_checkpoint(FIXTURES / "golden" / "tiny_a")
    classes = checkpoint.engram_classes
    assert classes is not None
    return SmallModel(checkpoint.config, load_weights(checkpoint), classes)


@lru_cache(maxsize=1)
def k6_model() -> SmallModel:
    """The shape of the shipped tiny model with invented weights."""
    config = parse_config(json.loads((FIXTURES / "k6_config.json").read_text()))
    classes = np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size
    return SmallModel(config, dummy_weights(config), classes)


@lru_cache(maxsize=1)
def golden_arrays() -> dict[str, np.ndarray]:
    """The golden outputs by key, read once."""
    with np.load(FIXTURES / "golden" / "golden_a.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files if not name.startswith("image/")}


@lru_cache(maxsize=1)
def golden_trace() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "golden" / "trace_a.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@lru_cache(maxsize=1)
def golden_prompts() -> list[list[int]]:
    return json.loads((FIXTURES / "golden" / "tiny_a" / "prompts.json").read_text())["prompts"]


def random_tokens(config: V41Config, count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, config.vocab_size - 100, count).tolist()
