"""The seat of one rank among several: what it holds of the plan, whom it talks to, and what the ranks decide together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING

import msgspec

from deepinfer.engine.build_spread import RankGroups
from deepinfer.engine.context_ranks import ContextLeader
from deepinfer.engine.executor_distributed import DistributedExecutor
from deepinfer.engine.serving_executor import ServingExecutor
from deepinfer.parallel.meeting import Meeting, Word
from deepinfer.parallel.rendezvous import put
from deepinfer.speculation.cost_curve import CostCurve

if TYPE_CHECKING:
    from torch.distributed import Store

    from deepinfer.engine.device import StepClocked
    from deepinfer.parallel.eplb.balancer import EplbBalancer
    from deepinfer.parallel.eplb.saved import Saved
    from deepinfer.parallel.groups import Groups, WorldShape
    from deepinfer.plan.types import Plan, RankMemory, RankPlan, RolePlan

CURVE = "cost_curve"
MEASURED_WITHIN = timedelta(hours=1)
RESTING = Word(runs=False, drafts=False, works=False)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """One rank of a plan of several. `memory` is that of all ranks that share its requests."""

    rank: RankPlan
    role: RolePlan
    memory: RankMemory
    shape: WorldShape
    groups: Groups
    curve: SharedCurve
    saved: Saved | None = None  # where experts lie at first; None: in order

    @property
    def leads(self) -> bool:
        """Whether it has a scheduler of its own; the other ranks of its context do as it does."""
        return self.rank.context == 0

    @cached_property
    def shared(self) -> RankGroups | None:
        """Who has the rest of experts and n-gram tables; None where all of it is here."""
        groups = self.groups
        if groups.experts is groups.tables is groups.context is None:
            return None
        placed = None if self.saved is None else self.saved.placement
        return RankGroups(
            rank=self.rank, experts=groups.experts, tables=groups.tables, context=groups.context, placed=placed
        )

    @cached_property
    def meeting(self) -> Meeting | None:
        """Of the leaders that run their steps together; None where this rank has nobody to wait for, or follows its leader."""
        return Meeting(self.groups.leaders) if self.shape.in_step and self.leads else None

    def placed(
        self, executor: ServingExecutor, balancer: EplbBalancer | None
    ) -> tuple[StepClocked, DistributedExecutor | None]:
        """The executor of a leader: with its followers, and in step with other leaders (that one again) where need be."""
        after_step = None if balancer is None else balancer.after_step
        if self.groups.control is not None:
            leader = ContextLeader(executor, self.groups.control)
            executor = leader
            if balancer is not None:
                after_step = partial(_after_step, leader, balancer)
        if not self.shape.in_step and balancer is None:
            return executor, None
        in_step = DistributedExecutor(executor, self.meeting or Meeting(None), after_step=after_step)
        self.curve.in_step = in_step
        return in_step, in_step


def _after_step(leader: ContextLeader, balancer: EplbBalancer, asked: int) -> None:
    leader.after_step(asked)
    balancer.after_step(asked)


class SharedCurve:
    """One leader measures what steps cost, and the others take its curve: they serve while it measures, where steps are shared,
    and decide alike afterwards. The curve travels as bytes through the store of the world."""

    def __init__(self, store: Store, *, measures: bool) -> None:
        self._store, self._measures = store, measures
        self.in_step: DistributedExecutor | None = None

    def __call__(self, measured: Callable[[], tuple[CostCurve, str]]) -> tuple[CostCurve, str]:
        """The curve, and what the user should know of it."""
        if self._measures:
            curve, notice = measured()
            if self.in_step is not None:
                self.in_step.serve(RESTING)  # tells the others that there is nothing more to serve
            put(self._store, CURVE, _packed(curve))
            return curve, notice
        while self.in_step is not None and not self.in_step.serve(RESTING).sleeps:
            pass
        self._store.wait([CURVE], MEASURED_WITHIN)
        return _unpacked(self._store.get(CURVE)), ""


def memory_of(plan: Plan, rank: RankPlan) -> RankMemory:
    """The budget that a rank's requests have: the smallest of all ranks of its context, which hold the same caches."""
    first = rank.rank - rank.context
    mates = range(first, first + plan.layout.role(rank.role).context)
    theirs = [memory for memory in plan.memory if any(_holds(memory.ranks, mate) for mate in mates)]
    return min(theirs, key=lambda memory: (memory.num_blocks, memory.num_state_slots))


def _holds(spans: str, rank: int) -> bool:
    """Whether a rank is in a text such as "0-3,6"."""
    ends = [span.partition("-") for span in spans.split(",")]
    return any(int(first) <= rank <= int(last or first) for first, _, last in ends)


def _packed(curve: CostCurve) -> bytes:
    tables = [curve.rows, curve.forward_s, curve.sequences, curve.plain_s, curve.drafting_s]
    return msgspec.msgpack.encode((*(table.tolist() for table in tables), curve.padded))


def _unpacked(data: bytes) -> CostCurve:
    *tables, padded = msgspec.msgpack.decode(data)
    return CostCurve(*tables, padded=padded)
