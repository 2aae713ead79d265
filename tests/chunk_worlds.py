"""The same steps twice: launched one by one (FusedModel.forward), and padded to a size with rows in buffers (ChunkStep)."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from small_models import make_step, random_tokens
from torch import Tensor

from deepinfer.interfaces import StepInput, StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.chunk_step import ChunkStep, spare_states
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sequences import DeviceSequences

SNAPSHOTS = 4
Piece = tuple[int, int, int]  # slot, first and end position


class ChunkWorlds:
    """`num_slots` sequences of random tokens, each with the blocks that its slot has; caches begin full of NaN bytes."""

    def __init__(self, model: FusedModel, *, num_slots: int, max_model_len: int, most_rows: int, seed: int = 1) -> None:
        self.model, self.num_slots, self.max_model_len, self.most_rows = model, num_slots, max_model_len, most_rows
        self.rng, self.layout = np.random.default_rng(seed), model.layout
        self.blocks = -(-max_model_len // self.layout.block_tokens)
        self.direct = self.cache(0)
        self.padded = self.cache(spare_states([most_rows], self.layout.ring_slots))
        ngrams = model.config.engram_max_ngram_size
        self.sequences = DeviceSequences(num_slots, max_model_len, ngrams, 0, model.device)
        self.texts = [random_tokens(model.config, max_model_len, seed * 100 + slot) for slot in range(num_slots)]
        self.tables = self.rng.permutation(num_slots * self.blocks).reshape(num_slots, self.blocks)

    def cache(self, spare: int) -> ModelCache:
        made = {"num_blocks": self.num_slots * self.blocks, "num_slots": self.num_slots + 1, "num_spare": spare}
        about = self.model.config, self.layout
        cache = ModelCache(*about, **made, num_snapshots=SNAPSHOTS, device=self.model.device)
        cache.fill_nan(list(range(cache.num_blocks)))
        cache.fill_nan_slots(list(range(len(cache.state))))
        return cache

    def chunk_step(self, **options: Any) -> ChunkStep:
        options = {"row_sizes": [16, 48, self.most_rows]} | options
        return ChunkStep(self.model, self.padded, self.sequences, **options)

    def plan(self, *pieces: Piece, **fields: Any) -> StepPlan:
        """All pieces are chunks. Tokens before them are known to the device."""
        slots, starts, ends = (np.array(column, dtype=np.int64) for column in zip(*pieces))
        for slot, first, end in pieces:
            self.sequences.admit(slot, np.array(self.texts[slot][:first]), end + 1)
        floors = dict.fromkeys(("window_from", "upper_from", "write_from"), np.zeros(len(pieces), dtype=np.int64))
        return StepPlan(
            slots=slots,
            num_decode=0,
            block_tables=self.tables[slots, : -(-int(ends.max()) // self.layout.block_tokens)],
            chunk_starts=starts,
            chunk_rows=ends - starts,
            chunk_tokens=np.concatenate([self.texts[slot][first:end] for slot, first, end in pieces]),
            chunk_sampled=np.ones(len(pieces), dtype=bool),
            **floors | {name: np.array(values, dtype=np.int64) for name, values in fields.items()},
        )

    def input(self, *pieces: Piece, **fields: Any) -> StepInput:
        reach = max(-(-end // self.layout.block_tokens) for _, _, end in pieces)
        tables = self.tables[:, :reach].tolist()
        step = make_step([(self.texts[slot], first, end, slot, tables[slot]) for slot, first, end in pieces])
        return replace(step, **{name: np.array(values, dtype=np.int64) for name, values in fields.items()})

    def pieces(self, done: np.ndarray, lengths: tuple[int, ...]) -> list[Piece]:
        """Random sequences go on by some of these numbers of rows; `done` [slots] rows of each are computed, and then more."""
        found, room = [], self.most_rows
        for slot in self.rng.permutation(self.num_slots)[: self.rng.integers(1, self.num_slots + 1)].tolist():
            first = int(done[slot])
            rows = min(room, self.max_model_len - 1 - first, int(self.rng.choice(lengths)))
            if rows > 0:
                found.append((slot, first, first + rows))
                done[slot] += rows
                room -= rows
        return found

    def both(self, chunks: ChunkStep, *pieces: Piece, **fields: Any) -> tuple[Tensor, Tensor]:
        """Hidden rows of the step by both."""
        plan = self.plan(*pieces, **fields)
        assert chunks.takes(plan)
        hidden_TD = self.model.forward(self.input(*pieces, **fields), self.direct)
        padded_TD = chunks(plan)
        assert len(padded_TD) == chunks.row_sizes[-1]
        padded_TD = padded_TD[: chunks.size(plan.num_chunk_rows, 1).rows]
        assert padded_TD.isfinite().all()
        return hidden_TD, padded_TD[: len(hidden_TD)]

    def assert_equal(self, snapshots: tuple[int, ...] = ()) -> None:
        """Every byte of blocks and of slots, and every key of rings of these snapshots: tails before a pair are never read."""
        assert torch.equal(self.direct.blocks, self.padded.blocks)
        assert torch.equal(self.direct.state[: self.num_slots], self.padded.state[: self.num_slots])
        rows = [self.num_slots + 1 + snapshot for snapshot in snapshots]
        for layer in range(self.model.config.num_hidden_layers):
            assert torch.equal(self.direct.rings[layer][rows], self.padded.rings[layer][rows])
