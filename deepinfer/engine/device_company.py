"""What a device's executor does together with those of other ranks, who have experts and n-gram rows that it needs.

A step with rows of its own exchanges them layer by layer. A step without serves the others, as one graph where there are
graphs. Where memory runs out between two exchanges, those that are left are served without rows, so that the step is lost here
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from deepinfer.engine.device import StepOutOfMemory
from deepinfer.engine.device_memory import within_memory
from deepinfer.engine.shared_steps import OwnStepLost
from deepinfer.model.fused.dispatch import fits_graph
from deepinfer.model.fused.serve_step import ServeStep
from deepinfer.parallel.meeting import Room
from deepinfer.parallel.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.model.fused.dspark import FusedDSpark
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.fused.step_graphs import GraphPool
    from deepinfer.parallel.device_dispatch import DeviceDispatch
    from deepinfer.parallel.device_tables import DeviceTables

Result = TypeVar("Result")


class Served(Protocol):
    """Part of a layer that is with several ranks."""

    def serve(self) -> None: ...


class Company:
    """The other ranks, as the executor of one of them deals with them. `dispatch` is the model's and the draft module's,
    `tables` the model's; None where the experts, or all n-gram rows, are here.

    `graphs`, `pool` as for `ServeStep`; `replays` counts graphs each of which runs all exchanges of a pass at once.
    `gives_up_alone`: whether a step may be lost here alone, which it may where no other rank has the same rows.
    """

    def __init__(
        self,
        model: FusedModel,
        drafts: FusedDSpark | None,
        *,
        dispatch: DeviceDispatch | None,
        tables: DeviceTables | None,
        graphs: bool,
        pool: GraphPool | None = None,
        replays: Callable[[], int] = lambda: 0,
        gives_up_alone: bool = True,
    ) -> None:
        assert model.elsewhere is not None, "a model that is whole has no company"
        self.device, self._elsewhere, self._serve = model.device, model.elsewhere, model.serve
        self._replays, self._gives_up_alone = replays, gives_up_alone
        self._progress = Progress(model.device)
        for part in (dispatch, tables):
            if part is not None:
                part.progress = self._progress
        self._parts: list[Served] = []  # exchanges of a forward pass, in order
        for layer in model.layers:
            if layer.engram is not None and tables is not None:
                self._parts.append(layer.engram)
            if dispatch is not None:
                self._parts.append(layer.experts)
        self.forward = ServeStep(model.serve, self._elsewhere, model.device, graphs=graphs, pool=pool)
        self.draft: ServeStep | None = None
        self._draft_parts: list[Served] = []
        if drafts is not None and dispatch is not None:
            self._block = drafts.config.dspark_block_size
            self._draft_parts = [layer.experts for layer in drafts.layers]
            self.draft = ServeStep(drafts.serve, dispatch, model.device, graphs=graphs, pool=pool)
        self.drafted = False  # whether the newest step's round of drafts was begun by this rank's own sequences

    @torch.inference_mode()
    def connect(self) -> None:
        """Meet the others in every kind of exchange, without graphs: what they are made of connects when it is first used, and
        cannot while it is captured. All ranks do so before anything else."""
        for rows in (1, self._elsewhere.most_rows, self._elsewhere.most_rows + 1):
            self._elsewhere.begin(rows)
            self._serve()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def capture(self, rows: Sequence[int]) -> None:
        """Graphs of passes without rows of these sizes, ahead of the first; nothing is said to anybody."""
        for most in rows:
            self.forward.capture(most)

    def only_launches(self, rows: int) -> bool:
        """Whether a step in which some rank has so many rows waits for nothing."""
        return fits_graph(self._elsewhere, rows)

    def serve_forward(self, room: Room) -> None:
        self.forward(room.rows)

    def serve_draft(self, room: Room) -> None:
        if self.draft is not None:
            self.draft(room.sequences * self._block)

    def whole_forward(self, work: Callable[[], Result], room: Room) -> Result:
        """What `work` returns, which runs a forward pass. Raises StepOutOfMemory as `within_memory`; OwnStepLost where the
        others have what they need all the same."""
        return self._whole(work, 0, lambda: self._end_forward(room))

    def whole_draft(self, work: Callable[[], Result]) -> Result:
        """The same of what comes behind the forward pass. A round of drafts that had not begun is the caller's to serve."""
        first, replays = len(self._parts), self._replays()
        try:
            return self._whole(work, first, self._end_draft)
        finally:
            self.drafted = self._progress.done > first or self._replays() > replays

    def close(self) -> None:
        for step in (self.forward, self.draft):
            if step is not None:
                step.close()

    def _whole(self, work: Callable[[], Result], first: int, make_up: Callable[[], None]) -> Result:
        """The exchanges before number `first` are through."""
        replays = self._replays()
        self._progress.reset(first)
        try:
            return within_memory(work, self.device)
        except StepOutOfMemory as error:
            lost = error.with_traceback(None)
        if self._progress.open or not self._gives_up_alone:
            raise lost
        if self._replays() == replays:
            within_memory(make_up, self.device)
        raise OwnStepLost(str(lost))

    @torch.inference_mode()
    def _end_forward(self, room: Room) -> None:
        """What others still need of a lost forward pass."""
        if not self._progress.done:
            self.serve_forward(room)
            return
        for part in self._parts[self._progress.done :]:
            part.serve()

    @torch.inference_mode()
    def _end_draft(self) -> None:
        """The same of a round of drafts, if it was begun."""
        done = self._progress.done - len(self._parts)
        for part in self._draft_parts[done:] if done else ():
            part.serve()
