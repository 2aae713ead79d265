"""Decode steps of one rank as an engine launches them: resolved on the device, sampled, verified, drafted for the next.

Nothing is appended to the sequences, so that every launch does the same work.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from deepinfer.engine.rank_slice.clock import Clock
from deepinfer.engine.rank_slice.inputs import block_tables
from deepinfer.engine.rank_slice.model import SliceModel
from deepinfer.engine.rank_slice.steps import plain_sampling
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import StepPlan
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.decode_step import DecodeRows, DecodeStep
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.speculation.calibration import Calibration
from deepinfer.speculation.dspark_device import DeviceDSpark

Call = Callable[[], object]


@dataclass(frozen=True)
class DecodeCalls:
    """`step` is all of it: the plan's copy, rows, layers, head, sampling, verification, drafting where drafts are checked."""

    step: Call
    drafting: Call | None  # the last part alone
    body: (
        Call  # what lies between the plan's copy and the drafting, as launches that a graph of somebody else's can hold
    )


class Decoder:
    """For up to `sequences` of up to `max_model_len` tokens with `depth` drafts each; the cache has one slot more."""

    def __init__(
        self, share: SliceModel, cache: ModelCache, clock: Clock, *, sequences: int, depth: int, max_model_len: int
    ) -> None:
        self.share, self.cache, self.clock, self.depth = share, cache, clock, depth
        self._open: list[DecodeStep | DeviceDSpark] = []
        ngram_size = share.config.engram_max_ngram_size
        self.state = DeviceSequences(sequences, max_model_len, ngram_size, depth, share.model.device)
        self.state.tokens_NL[:, self.state.pad :].random_(0, share.config.vocab_size)

    @torch.inference_mode()
    def prepare(self, sequences: int, rows_each: int, context: int) -> DecodeCalls:
        """Steps of `sequences` whose newest row stands at the end of `context` tokens; drafts are random at first.

        What was prepared before is over.
        """
        self._end()
        state, plan = self.state, self._plan(sequences, rows_each, context)
        state.num_tokens_N[:sequences] = context - (rows_each - 1)
        state.length_end_N[:sequences] = context + 2
        state.drafts_NK[:sequences].random_(0, self.share.config.vocab_size)
        state.confidence_NK[:sequences] = 1.0
        launch = self._step(sequences, rows_each)
        rows = launch(plan)
        finishing = self._finishing(rows, sequences, rows_each)
        finish = self.clock.replayed(finishing)
        drafting = self._drafting(rows, sequences) if rows_each > 1 else None
        size = launch.size(sequences, plan.num_drafts, plan.block_tables.shape[1])

        def step() -> None:
            launch(plan)
            finish()
            if drafting is not None:
                drafting()

        @torch.inference_mode()
        def body() -> None:
            launch._launch(size)  # the step without the plan's copy, which no graph can hold
            finishing()

        return DecodeCalls(step, drafting, body)

    def _end(self) -> None:
        """End the graphs of the steps prepared last: none may be freed while another one is captured."""
        for part in self._open:
            part.close()
        self._open.clear()
        gc.collect()

    def _step(self, sequences: int, rows_each: int) -> DecodeStep:
        """A new one every time: its graphs hold the pairs that experts get now."""
        step = DecodeStep(
            self.share.model,
            self.cache,
            self.state,
            verify_length=rows_each - 1,
            features=rows_each > 1,
            graphs=self.clock.graphs,
            row_sizes=[sequences, sequences * rows_each],
        )
        self._open.append(step)
        return step

    def _plan(self, sequences: int, rows_each: int, context: int) -> StepPlan:
        tables = block_tables(sequences, context, self.cache.layout.block_tokens)
        drafts = sequences * (rows_each - 1)
        return decode_plan(np.arange(sequences), tables, num_drafts=drafts, draft=rows_each > 1)

    def _finishing(self, rows: DecodeRows, sequences: int, rows_each: int) -> Call:
        """Head, sampling and verification of the live rows."""
        model, live = self.share.model, sequences * rows_each
        positions = rows.positions_T[:live].cpu().numpy().astype(np.int64) + 1
        asked = plain_sampling(positions, self.share.config.vocab_size).to(model.device)
        starts_X = rows.row_starts_S1[: sequences + 1]

        @torch.inference_mode()
        def finish() -> None:
            token_T = model.ops.sample_rows(model.logits(rows.hidden_TD[:live]), asked).token_R
            if rows_each > 1:
                model.ops.accepted_lengths(token_T, self.state.drafts_NK[:sequences], starts_X)

        return finish

    def _drafter(self) -> DeviceDSpark:
        assert self.share.drafter is not None, "drafts are checked where there is a draft module"
        drafter = DeviceDSpark(
            self.share.drafter,
            self.cache,
            depth=self.depth,
            calibration=Calibration((), self.share.config.dspark_block_size),
            temperatures=lambda slots: np.ones(len(slots)),
            seeds=lambda slots: slots.astype(np.uint64),
            graphs=self.clock.graphs,
        )
        self._open.append(drafter)
        return drafter

    def _drafting(self, rows: DecodeRows, sequences: int) -> Call:
        drafter, slots = self._drafter(), np.arange(sequences)
        observe = self.clock.replayed(partial(drafter.observe_rows, rows))

        def drafting() -> None:
            observe()
            drafter.launch(slots, self.state)

        return drafting
