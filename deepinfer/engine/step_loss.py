"""A step for which the device's memory did not suffice: who gives way, and how large later steps are.

Rows of such a step may have been written or not. So all of its sequences lose their place, the youngest first, and are computed
again, which writes everything anew: answers stay the same. Steps get smaller (fewer rows, or fewer answers), and slowly larger
again. A request that was in several lost steps without a token in between runs alone, in ever smaller steps; one row alone that
is too much ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.engine.block_growth import best_first

if TYPE_CHECKING:
    from deepinfer.engine.limits import EngineLimits
    from deepinfer.engine.scheduler import Scheduler
    from deepinfer.engine.step_plan import ScheduledStep

PATIENCE = 8  # steps that must go well before a limit is lifted; twice as many after every time that was too soon
MOST_LOSSES = 3  # of a request, before it runs alone


@dataclass(slots=True)
class Trouble:
    """Of a request: lost steps since its last token, and rows that a step of it alone may have."""

    losses: int = 0
    most_rows: int = 1 << 62


class RowLimit:
    """How many rows a step may have, and how many sequences may run: as configured, until a step runs out of memory."""

    def __init__(self, most: int) -> None:
        self.most = self.now = self._sequences = most
        self._went_well, self._patience = 0, PATIENCE
        self._troubles: dict[int, Trouble] = {}

    def shrink(self, rows: int, request_ids: Iterable[int], *, chunks: bool = True) -> None:
        """A step of `rows` of these requests was too large; `chunks`: it had some, else it was one of answers alone."""
        request_ids = list(request_ids)
        if chunks or len(request_ids) == 1:
            self.now = max(1, min(self.now, rows) // 2)
        else:
            self._sequences = max(1, min(self._sequences, len(request_ids)) // 2)
        if self._went_well:
            self._patience *= 2
        self._went_well = 0
        for request_id in request_ids:
            trouble = self._troubles.setdefault(request_id, Trouble())
            trouble.losses += 1
            if len(request_ids) == 1 and chunks:
                trouble.most_rows = min(trouble.most_rows, max(1, rows // 2))

    def went_well(self, request_ids: Iterable[int]) -> None:
        """A step was carried out, and these requests got tokens."""
        for request_id in request_ids if self._troubles else ():
            self._troubles.pop(request_id, None)
        if self.now == self._sequences == self.most:
            return
        self._went_well += 1
        if self._went_well % self._patience == 0:
            self.now, self._sequences = min(self.most, 2 * self.now), min(self.most, 2 * self._sequences)

    def lost_often(self, request_id: int) -> bool:
        """Whether it was in several lost steps without a token in between; one is nothing: others want memory for a moment."""
        trouble = self._troubles.get(request_id)
        return trouble is not None and trouble.losses >= MOST_LOSSES

    def lift(self) -> None:
        """Who asked for too much ends."""
        self.now = self._sequences = self.most

    def forget(self, request_id: int) -> None:
        """It has ended."""
        self._troubles.pop(request_id, None)

    def rows_of(self, request_id: int) -> int:
        """Rows that a chunk of the request may have."""
        trouble = self._troubles.get(request_id)
        return self.now if trouble is None else min(self.now, trouble.most_rows)

    def may_join(self, request_id: int, running_ids: list[int]) -> bool:
        """Whether the request may be admitted beside those that run."""
        if len(running_ids) >= min(self.now, self._sequences):
            return False
        return not running_ids or not any(self.lost_often(one) for one in (request_id, *running_ids))


def give_way(scheduler: Scheduler, scheduled: ScheduledStep) -> list[int]:
    """Preempt the sequences of a lost step. Returns the request of one that does not fit alone, which the caller ends."""
    table, plan = scheduler.table, scheduled.plan
    here = plan.slots[table.epoch[plan.slots] == scheduled.epochs]
    rows = plan.num_decode + plan.num_chunk_rows + plan.num_drafts
    alone = len(plan.slots) == 1 and rows == 1
    request_ids: list[int] = table.request_id[here].tolist()
    for slot in reversed(best_first(table, here)):
        scheduler.preempt(slot)
    if scheduler.prefix is not None:
        scheduler.prefix.lose(scheduled)
    scheduler.rows.shrink(rows, request_ids, chunks=plan.num_chunk_rows > 0)
    if not alone or not all(map(scheduler.rows.lost_often, request_ids)):
        return []
    scheduler.rows.lift()
    return request_ids


def too_large(found: str, num_tokens: int, limits: EngineLimits) -> str:
    """What the user of a request hears for which one row is too much."""
    problem = Problem(
        asked=f"a step of one row, alone, for a request that is at {num_tokens:,} tokens",
        found=found,
        why="smaller steps were tried before; other processes on the device, or the cache, have what it needs",
        fix=f"cache.num_blocks={max(1, limits.num_blocks * 3 // 4)}",
        code=ExitCode.MEMORY,
    )
    return str(problem)
