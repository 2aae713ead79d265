"""What a device's executor is to executors around it that run steps together with other ranks: see `ServingExecutor`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from deepinfer.parallel.meeting import NO_ROOM, Room

if TYPE_CHECKING:
    from deepinfer.engine.device_clock import LaunchGuard
    from deepinfer.engine.device_company import Company
    from deepinfer.engine.device_forward import ForwardLanes
    from deepinfer.engine.device_sampling import SamplingLane
    from deepinfer.engine.drafting import DraftGrammar
    from deepinfer.interfaces import StepPlan


class ServingDevice:
    """`company` None: it has nobody to serve."""

    lanes: ForwardLanes
    sampling: SamplingLane
    company: Company | None
    device: torch.device
    threads: int
    _guard: LaunchGuard
    _room = NO_ROOM  # that ranks agreed on last

    @property
    def grammar(self) -> DraftGrammar | None:
        return self.sampling.grammar

    @grammar.setter
    def grammar(self, grammar: DraftGrammar | None) -> None:
        self.sampling.grammar = grammar

    @property
    def drafted(self) -> bool:
        return self.company is not None and self.company.drafted

    def room(self, plan: StepPlan) -> Room:
        if self.company is None:
            return NO_ROOM
        sampled = plan.num_decode + int(plan.chunk_sampled.sum())
        return Room(self.lanes.padded_rows(plan), self.sampling.padded(sampled) if plan.draft and sampled else 0)

    def _settled(self, plan: StepPlan) -> Room:
        """What was agreed on; of a rank that meets nobody what follows from the plan, which its followers have, too."""
        return self.room(plan) if self._room == NO_ROOM else self._room

    def agree(self, room: Room) -> None:
        self._room = room

    def serve_forward(self) -> None:
        """A forward pass without rows of its own: others' rows come to the experts that lie here. Launches only."""
        self._use_threads()
        if self.company is not None:
            self.company.serve_forward(self._room)

    def serve_draft(self) -> None:
        """The same for a round of drafts."""
        self._use_threads()
        if self.company is not None:
            self.company.serve_draft(self._room)

    def _launching(self, rows: int) -> AbstractContextManager[None]:
        """A region in which nothing waits for the device, but where ranks exchange exact numbers: in steps of many rows."""
        waits = self.company is not None and not self.company.only_launches(rows)
        return nullcontext() if waits else self._guard()

    def _use_threads(self) -> None:
        """Of the host and, where there are several, the device that this thread launches on."""
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)
        elif self.device.type == "cpu" and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
