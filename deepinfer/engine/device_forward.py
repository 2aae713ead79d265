"""The forward pass of a step on a device, on one of two lanes.

The decode lane runs steps of running answers alone: their rows are resolved on the device, from what earlier steps left there,
so that the host need not know them. The host lane runs everything else (chunks of prompts, restores, snapshots) from rows that
the host resolved, which it can only do once it knows the results of the step before.
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
from deepinfer.model.fused.decode_sizes import graph_sizes
from deepinfer.model.fused.glue import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.decode_step import DecodeRows, DecodeStep
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.fused.sequences import DeviceSequences


class Observer(Protocol):
    """A drafter on the device that wants the features of every row."""

    def observe(self, step: StepInput, features_TF: Tensor) -> None: ...

    def observe_rows(self, rows: DecodeRows) -> None: ...


@dataclass(slots=True)
class Pass:
    """A forward pass on its way. `resolved` None: only the device knows its rows; `hidden_TD` may have more than those."""

    plan: StepPlan
    hidden_TD: Tensor
    resolved: Resolved | None = None


class ForwardLanes:
    """Launches passes. `decode` None leaves every step to the host lane; `observer` None: nobody wants features."""

    def __init__(
        self,
        model: FusedModel,
        cache: ModelCache,
        state: DecodeState,
        sequences: DeviceSequences,
        *,
        decode: DecodeStep | None,
        observer: Observer | None,
    ) -> None:
        self.model, self.cache, self.state, self.sequences = model, cache, state, sequences
        self.decode, self.observer = decode, observer

    def close(self) -> None:
        """Give back what graphs hold."""
        if self.decode is not None:
            self.decode.close()

    def stays_on_device(self, plan: StepPlan) -> bool:
        """Whether the decode lane takes the step."""
        return self.decode is not None and not (len(plan.chunk_starts) or len(plan.restores) or len(plan.snapshots))

    @property
    def row_sizes(self) -> Sequence[int]:
        """To which numbers of rows the decode lane fills up steps."""
        return () if self.decode is None else self.decode.row_sizes

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        """Steps of `rows` rows took so long; sizes that gain nothing get no graphs."""
        if self.decode is not None:
            sizes = graph_sizes(rows.tolist(), seconds.tolist(), self.decode.row_sizes[-1])
            self.decode.row_sizes = sizes

    def make_ready(self, plan: StepPlan) -> None:
        """Whatever the decode lane needs once for steps of this size, such as a graph; it may take a while, and wait."""
        assert self.decode is not None, "there is no decode lane"
        self.decode.capture(len(plan.slots), plan.num_drafts, plan.block_tables.shape[1])

    @torch.inference_mode()
    def launch_decode(self, plan: StepPlan) -> Pass:
        """Launches only. The device's own knowledge of its sequences is complete: all earlier calls are in its queue."""
        assert self.decode is not None, "there is no decode lane"
        rows = self.decode(plan)
        if self.observer is not None:
            self.observer.observe_rows(rows)
        return Pass(plan, rows.hidden_TD)

    @torch.inference_mode()
    def launch_host(self, plan: StepPlan) -> Pass:
        """The host's knowledge of its sequences must be complete."""
        resolved = self.state.resolve(plan)
        chunks = plan.slots[plan.num_decode :]
        self.sequences.put_chunks(chunks, plan.chunk_starts, plan.chunk_rows, plan.chunk_tokens)
        states, going_on = None, chunks[plan.chunk_starts > 0]
        with suppress(torch.OutOfMemoryError):
            states = self._states(going_on) if len(going_on) else None
            return Pass(plan, self._forward(resolved.step), resolved)
        # Once more, outside of any handler: its traceback would hold on to all that the first run made.
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
