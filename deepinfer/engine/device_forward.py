"""The forward pass of a step on a device, on the device's lane or the host's.

The device's lane resolves rows there, from what earlier steps left, so that the host need not know them and nothing waits. It
takes steps of running answers alone, and those with chunks of prompts that fit a graph. States are copied into snapshots from
the plan alone. The host's lane launches other chunks piece by piece, from rows that the host resolved, which it can only do
once it knows the results of the step before.

Where ranks share experts, `shared` is the most rows, padded, that any of them has in the step; 0 for a rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from deepinfer.engine.decode_state import DecodeState, Resolved
from deepinfer.interfaces import StepInput, StepPlan
from deepinfer.model.fused.chunk_step import SIZES
from deepinfer.model.fused.decode_sizes import graph_sizes, size_of
from deepinfer.model.fused.glue import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.chunk_step import ChunkStep
    from deepinfer.model.fused.decode_step import DecodeStep
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.fused.sequences import DeviceSequences


class Observer(Protocol):
    """A drafter on the device that wants the features of every row; those of the device's lane it gets from its steps."""

    def observe(self, step: StepInput, features_TF: Tensor) -> None: ...

    def begin(self, slots: np.ndarray, floor_S: np.ndarray) -> None: ...


@dataclass(slots=True)
class Pass:
    """A forward pass on its way. `resolved` None: only the device knows its rows; `hidden_TD` may have more than those."""

    plan: StepPlan
    hidden_TD: Tensor
    resolved: Resolved | None = None


class ForwardLanes:
    """Launches passes. The device's lane has `decode` for running answers and `chunks` for steps with prompts; steps of which
    it lacks the one are the host's. `observer` None: nobody wants features.
    """

    def __init__(
        self,
        model: FusedModel,
        cache: ModelCache,
        state: DecodeState,
        sequences: DeviceSequences,
        *,
        decode: DecodeStep | None,
        observer: Observer | None,
        chunks: ChunkStep | None = None,
    ) -> None:
        self.model, self.cache, self.state, self.sequences = model, cache, state, sequences
        self.decode, self.observer, self.chunks = decode, observer, chunks

    def close(self) -> None:
        """Give back what graphs hold."""
        for lane in (self.decode, self.chunks):
            if lane is not None:
                lane.close()

    def padded_rows(self, plan: StepPlan) -> int:
        """For how many rows the step is made, at most: on all ranks of a few sizes, which the rest of its launches follow."""
        if plan.num_decode == len(plan.slots) and self.decode is not None:
            return self.decode.size(len(plan.slots), plan.num_drafts, plan.block_tables.shape[1]).rows
        most = self.state.depth if self.decode is None else self.decode.verify_length
        rows = plan.num_decode + min(plan.num_drafts, plan.num_decode * most) + plan.num_chunk_rows
        return size_of(rows, SIZES) if rows <= SIZES[-1] else rows

    def stays_on_device(self, plan: StepPlan, shared: int = 0) -> bool:
        """Whether the device's lane takes the step. The first with chunks of a size takes a while: see `ChunkStep.takes`."""
        if plan.num_decode == len(plan.slots):
            return self.decode is not None
        return self.chunks is not None and self.chunks.takes(plan, shared)

    @property
    def row_sizes(self) -> Sequence[int]:
        """To which numbers of rows the decode lane fills up steps."""
        return () if self.decode is None else self.decode.row_sizes

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Steps of `rows` rows took so long; sizes that gain nothing get no graphs."""
        if self.decode is not None:
            sizes = graph_sizes(rows.tolist(), seconds.tolist(), self.decode.row_sizes[-1])
            self.decode.row_sizes = sizes

    def make_ready(self, plan: StepPlan, shared: int = 0) -> None:
        """Whatever the device's lane needs once for steps of this size, such as a graph; it may take a while, and wait."""
        if plan.num_decode == len(plan.slots):
            assert self.decode is not None, "there is no decode lane"
            self.decode.capture(len(plan.slots), plan.num_drafts, plan.block_tables.shape[1], shared)

    @property
    def chunk_sizes(self) -> list[int]:
        """To which numbers of rows steps with chunks are padded, falling: the largest makes the memory of all graphs."""
        return [] if self.chunks is None else self.chunks.row_sizes[::-1]

    def capture_chunks(self) -> None:
        """Graphs of steps with chunks of all numbers of rows, of sequences that are not very long, ahead of the first."""
        if self.chunks is not None:
            for rows in self.chunk_sizes:
                self.chunks.capture(rows, num_blocks=1)

    @torch.inference_mode()
    def launch_decode(self, plan: StepPlan, shared: int = 0) -> Pass:
        """Launches only. The device's own knowledge of its sequences is complete: all earlier calls are in its queue."""
        if plan.num_decode < len(plan.slots):
            return self._launch_chunks(plan, shared)
        assert self.decode is not None, "there is no decode lane"
        return Pass(plan, self.decode(plan, shared).hidden_TD)

    def _launch_chunks(self, plan: StepPlan, shared: int) -> Pass:
        assert self.chunks is not None, "there is no lane for chunks"
        if self.observer is not None:
            self.observer.begin(plan.slots[plan.num_decode :], plan.upper_from[plan.num_decode :])
        return Pass(plan, self.chunks(plan, shared))

    @torch.inference_mode()
    def launch_host(self, plan: StepPlan, shared: int = 0) -> Pass:
        """The host's knowledge of its sequences must be complete."""
        resolved = self.state.resolve(plan)
        chunks = plan.slots[plan.num_decode :]
        self.sequences.put_chunks(chunks, plan.chunk_starts, plan.chunk_rows, plan.chunk_tokens)
        if self.model.elsewhere is not None:
            self.model.elsewhere.begin(shared or resolved.step.num_rows)
        if self.model.elsewhere is not None or self.model.division is not None:
            return Pass(plan, self._forward(resolved.step), resolved)  # what others were told cannot be told again
        states, going_on = None, chunks[plan.chunk_starts > 0]
        with suppress(torch.OutOfMemoryError):
            states = self._states(going_on) if len(going_on) else None
            return Pass(plan, self._forward(resolved.step), resolved)
        # Once more, outside of any handler: its traceback would hold on to all that the first run made.
        if self.cache.state.is_cuda:
            torch.cuda.synchronize()  # a second stream may still read what is given back here
        torch.cuda.empty_cache()  # pieces of other sizes; whatever the step has written it writes again
        if states is not None:
            self.cache.state.index_copy_(0, *states)
        return Pass(plan, self._forward(resolved.step), resolved)

    def _states(self, slots: np.ndarray) -> tuple[Tensor, Tensor]:
        """Slots of chunks that go on, and their states before the step: of a long one the last rows' keys take the places of
        those that its first rows see, so that it cannot be run again from what it left."""
        slots_C = to_device({"slots": slots}, self.cache.state.device)["slots"].long()
        return slots_C, self.cache.state.index_select(0, slots_C)

    def _forward(self, step: StepInput) -> Tensor:
        if self.observer is None:
            return self.model.forward(step, self.cache)
        hidden_TD, features_TF = self.model.forward_with_features(step, self.cache)
        self.observer.observe(step, features_TF)
        return hidden_TD
