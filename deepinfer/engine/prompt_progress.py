"""Prompt log probabilities on their way out: each position once, also where a preempted prompt is computed again."""

from __future__ import annotations

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.sequences import SequenceTable
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.interfaces import TokenLogprobs


class PromptProgress:
    """How many prompt positions of each sequence have been delivered."""

    def __init__(self) -> None:
        self._delivered: dict[int, int] = {}

    def expect(self, request_id: int) -> None:
        self._delivered[request_id] = 0

    def forget(self, request_id: int) -> None:
        self._delivered.pop(request_id, None)

    def attach(
        self,
        scheduled: ScheduledStep,
        table: SequenceTable,
        computed: dict[int, list[TokenLogprobs]],
        events: list[TokenEvent],
    ) -> None:
        """Put what is new in `computed` (sequence of the step → its rows) on the sequence's event, or on a new one.

        The first row of a chunk at position p predicts prompt position p + 1, which is number p of those delivered.
        """
        by_id = {event.request_id: event for event in events}
        for sequence, rows in computed.items():
            slot = scheduled.plan.slots[sequence]
            request_id = int(table.request_id[slot])
            if table.epoch[slot] != scheduled.epochs[sequence] or request_id not in self._delivered:
                continue
            start = int(scheduled.plan.chunk_starts[sequence - scheduled.plan.num_decode])
            new = rows[self._delivered[request_id] - start :] if self._delivered[request_id] > start else rows
            if not new:
                continue
            self._delivered[request_id] = start + len(rows)
            if request_id not in by_id:
                by_id[request_id] = TokenEvent(request_id, [])
                events.append(by_id[request_id])
            by_id[request_id].prompt_logprobs = new
