"""The same sequences twice: resolved on the host (DecodeState, FusedModel.forward), and on the device (DecodeStep)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import Drafts, StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.decode_step import DecodeRows, DecodeStep
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sequences import DeviceSequences

CONFIDENCES = np.array(
    [0.0, 0.5, 0.5, 0.9, 1.0, 1.5, np.nan], dtype=np.float32
)  # many ties, and what no drafter should say


class Worlds:
    """`num_slots` sequences, each with the blocks that its slot has; caches begin full of NaN bytes."""

    def __init__(
        self,
        model: FusedModel,
        *,
        num_slots: int,
        max_model_len: int,
        depth: int,
        seed: int,
        verify_length: int | None = None,
        num_snapshots: int = 0,
        spare_rows: int = 0,
    ) -> None:
        self.model, self.num_slots, self.depth, self.max_model_len = model, num_slots, depth, max_model_len
        self.rng = np.random.default_rng(seed)
        device, ngrams = model.device, model.config.engram_max_ngram_size
        self.blocks = -(-max_model_len // model.layout.block_tokens)
        self.host, self.device = (
            ModelCache(
                model.config,
                model.layout,
                num_blocks=num_slots * self.blocks,
                num_slots=num_slots + 1,
                num_snapshots=num_snapshots,
                num_spare=-(-spare_rows // model.layout.ring_slots),
                device=device,
            )
            for _ in range(2)
        )
        for cache in (self.host, self.device):
            cache.fill_nan(list(range(cache.num_blocks)))
            cache.fill_nan_slots([*range(num_slots), *range(len(cache.state) - cache.num_spare, len(cache.state))])
        self.state = DecodeState(num_slots, max_model_len, ngrams, depth, verify_length)
        self.sequences = DeviceSequences(num_slots, max_model_len, ngrams, depth, device)
        self.tables = self.rng.permutation(num_slots * self.blocks).reshape(num_slots, self.blocks)

    def step(self, **options: object) -> DecodeStep:
        return DecodeStep(self.model, self.device, self.sequences, **options)

    def tokens(self, count: int) -> np.ndarray:
        return self.rng.integers(3, self.model.config.vocab_size - 100, count)

    def admit(self, slot: int, num_prompt: int, length_end: int, cuts: tuple[int, ...] = ()) -> None:
        """A new sequence whose prompt is computed in chunks that end at `cuts`, in both worlds by the host's way."""
        prompt = self.tokens(num_prompt)
        for admit in (self.state.admit, self.sequences.admit):
            admit(slot, prompt, length_end)
        for first, end in zip((0, *cuts), (*cuts, num_prompt)):
            self.chunk(slot, first, prompt[first:end])

    def chunk(self, slot: int, start: int, tokens: np.ndarray, **fields: np.ndarray) -> None:
        starts, rows = np.array([start]), np.array([len(tokens)])
        alone = self.plan(np.array([slot]), reach=start + len(tokens))
        plan = replace(
            alone, num_decode=0, chunk_starts=starts, chunk_rows=rows, chunk_tokens=tokens,
            chunk_sampled=np.ones(1, dtype=bool), **fields,
        )  # fmt: skip
        step = self.state.resolve(plan).step
        for cache in (self.host, self.device):
            self.model.forward(step, cache)
        self.sequences.put_chunks(plan.slots, starts, rows, tokens)

    def plan(self, slots: np.ndarray, num_drafts: int = 0, reach: int = 0, **fields: np.ndarray) -> StepPlan:
        """A decode step of `slots`; the tables are as wide as the longest sequence may need, or `reach` positions."""
        reach = reach or int((self.state.num_tokens[slots] + self.depth + 1).max())
        width = min(self.blocks, -(-reach // self.model.layout.block_tokens))
        return decode_plan(slots, self.tables[slots, :width], num_drafts=num_drafts, **fields)

    def mixed(
        self, decode: np.ndarray, chunks: dict[int, np.ndarray], starts: dict[int, int], num_drafts: int = 100
    ) -> StepPlan:
        """`decode` go on, beside chunks (slot → tokens) that begin at `starts`."""
        slots = np.concatenate([decode, np.array(list(chunks), dtype=np.int64)])
        rows = np.array([len(tokens) for tokens in chunks.values()])
        first = np.array([starts[slot] for slot in chunks])
        reach = max(int((first + rows).max()), int((self.state.num_tokens[decode] + self.depth + 1).max()))
        return replace(
            self.plan(slots, num_drafts, reach),
            num_decode=len(decode),
            chunk_starts=first,
            chunk_rows=rows,
            chunk_tokens=np.concatenate(list(chunks.values())),
            chunk_sampled=np.ones(len(rows), dtype=bool),
        )

    def both(self, step: DecodeStep, plan: StepPlan) -> tuple[Tensor, DecodeRows, np.ndarray]:
        """Hidden rows of the host's step, the device's, and how many drafts each sequence had checked."""
        resolved = self.state.resolve(plan)
        hidden_TD, rows = self.model.forward(resolved.step, self.host), step(plan)
        count = resolved.step.num_rows
        assert int(rows.row_starts_S1[-1]) == count <= rows.num_rows_bound <= len(rows.hidden_TD)
        assert rows.row_starts_S1[: len(plan.slots) + 1].tolist() == resolved.step.row_starts.tolist()
        assert rows.checked_S[: len(plan.slots)].tolist() == resolved.num_checked.tolist()
        assert rows.positions_T[:count].tolist() == resolved.step.positions.tolist()
        slots = np.repeat(plan.slots, np.diff(resolved.step.row_starts))
        assert rows.slots_T.tolist() == [*slots, *[self.num_slots] * (len(rows.hidden_TD) - count)]
        return hidden_TD, rows, resolved.num_checked

    def go_on(self, slots: np.ndarray, counts: np.ndarray) -> None:
        """`counts` random tokens go to the ends of `slots`, and new drafts stand behind them, with random holes."""
        tokens, starts = self.tokens(int(counts.sum())), np.cumsum(counts) - counts
        self.state.append(slots, tokens, counts)
        on_device = [torch.from_numpy(array).to(self.model.device) for array in (slots, tokens, starts, counts)]
        if len(tokens):
            self.sequences.append(*on_device)
        drafts = self.tokens(len(slots) * self.depth).reshape(len(slots), self.depth)
        drafts[self.rng.random(drafts.shape) < 0.1] = -1
        confidence = self.rng.choice(CONFIDENCES, drafts.shape)
        self.state.keep_drafts(slots, Drafts(drafts, confidence))
        self.sequences.keep_drafts(*(torch.from_numpy(x).to(self.model.device) for x in (slots, drafts, confidence)))

    def accept(self, slots: np.ndarray, checked: np.ndarray) -> None:
        """Some of the checked drafts' places and one token more, but never beyond an end."""
        room = self.state.length_end[slots] - self.state.num_tokens[slots]
        counts = np.minimum(self.rng.integers(1, checked + 2), room)
        self.go_on(slots, counts)

    def assert_equal(self) -> None:
        """Every byte of the caches but the padding slot's, and all that is known of the sequences."""
        assert torch.equal(self.host.blocks, self.device.blocks)
        assert torch.equal(self.host.state[: self.num_slots], self.device.state[: self.num_slots])
        length = self.state.tokens_NL.shape[1]
        assert self.sequences.tokens_NL[: self.num_slots, :length].tolist() == self.state.tokens_NL.tolist()
        assert self.sequences.num_tokens_N.tolist() == [*self.state.num_tokens, 1]
        assert self.sequences.drafts_NK[: self.num_slots].tolist() == self.state.drafts_NK.tolist()
