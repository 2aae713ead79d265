"""The scheduler's dealings with whoever says how many drafts are checked."""

from __future__ import annotations

from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.sequences import SequenceTable
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.interfaces import StepOutput, VerifyLengths


class DraftBudget:
    """Turns slots of the table into the terms of `VerifyLengths`."""

    def __init__(self, table: SequenceTable, limits: EngineLimits) -> None:
        self._table, self._limits = table, limits
        self._drafted = False  # whether the last step leaves drafts behind

    def plan(self, lengths: VerifyLengths, scheduled: ScheduledStep, room: int) -> None:
        """How many drafts a step of `room` rows beside its first ones checks, and whether it makes new ones."""
        plan = scheduled.plan
        age = 0 if self._limits.async_depth else 1  # the newest that a step may know is two steps old
        confidence_RK = self._table.confidence[age, plan.slots[: plan.num_decode]]
        wanted, plan.draft = lengths.budget(confidence_RK, plan.num_chunk_rows)
        plan.num_drafts = max(0, min(wanted, room - plan.num_chunk_rows)) if self._drafted else 0
        self._drafted = plan.draft

    def observe(self, lengths: VerifyLengths, scheduled: ScheduledStep, output: StepOutput) -> None:
        """A step is through."""
        lengths.observe(
            num_sequences=scheduled.plan.num_decode,
            num_rows=output.num_rows,
            num_tokens=int(output.counts.sum()),
            drafted=scheduled.plan.draft,
            device_s=output.device_s,
            num_checked=0 if output.num_checked is None else int(output.num_checked.sum()),
        )
