"""Which rows run next: continuous batching over paged blocks, with admission by memory and preemption by recomputation.

Rules, in the order in which they are applied to every step:

1. Every running answer gets its row, and room for the drafts that it may check. One that needs a block when none is free takes
   the blocks of a victim: the lowest priority, among those the newest; possibly its own. The oldest request of the highest
   priority is never a victim of others, and any single request fits alone (`limits.max_total_tokens`), so something always
   moves.
2. Prompts go on where they stopped, oldest first, then new ones are admitted: by priority, then in order of submission, never
   past one that does not fit yet, unless it is a slot that is lacking: who was preempted has one. While answers run, at most
   `max_prefill_tokens` prompt rows join a step.
3. An admitted sequence gets all blocks of its known tokens at once. A preempted one keeps its slot, its tokens and its
   sampling state and loses its blocks; its tokens, generated ones included, are computed again when it returns.
4. Drafts fill what is left of the step, as many as `lengths` finds worth checking.

`schedule` may be called again before the step it gave is committed (async_depth 1). Then lengths are bounds: a sequence with
steps in flight (`pending`) has one token more for each of them at least, and one and all drafts more at most. `commit` books
what really came; results of sequences that lost their place meanwhile are dropped (epochs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.cache.block_pool import IndexPool
from deepinfer.engine.block_growth import BlockGrowth, best_first
from deepinfer.engine.booking import Committed, book
from deepinfer.engine.draft_budget import DraftBudget
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.prefix_admission import PrefixAdmission
from deepinfer.engine.sequences import DECODE, NO_ID, PREEMPTED, PREFILL, SequenceTable
from deepinfer.engine.stats import SchedulerCounts
from deepinfer.engine.step_loss import RowLimit
from deepinfer.engine.step_plan import Admission, ScheduledStep, make_step
from deepinfer.engine.waiting import NO_SLOT, Entry, WaitingLine
from deepinfer.interfaces import Request, StepOutput, VerifyLengths

if TYPE_CHECKING:
    from deepinfer.cache.prefix_cache import PrefixCache

_NOBODY = np.zeros(0, dtype=np.int64)


class Scheduler:
    """Owns the blocks, the slots, the waiting line and the table of sequences."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        lengths: VerifyLengths | None = None,
        prefix: PrefixCache | None = None,
        on_freed: Callable[[np.ndarray, int], None] = lambda blocks, slot: None,
    ) -> None:
        """`lengths` decides how many drafts are checked, where anything is drafted. `prefix` owns the blocks, where prefixes
        are kept.

        `on_freed(blocks, slot)` hears of all that a sequence gives back, before anyone else can own it; slot -1: of blocks
        whose sequence left earlier; slot `max_num_seqs` + i: of snapshot i.
        """
        assert (lengths is not None) == (limits.draft_depth > 0), "drafts need someone who says how many are checked"
        self.limits = limits
        self.table = SequenceTable(limits)
        self.blocks = IndexPool(limits.num_blocks) if prefix is None else prefix.blocks
        self.prefix = None if prefix is None else PrefixAdmission(prefix, self.table, limits)
        if prefix is not None:
            prefix.on_evicted = lambda blocks: on_freed(blocks, NO_ID)
            prefix.snapshots.on_freed = lambda snapshot: on_freed(_NOBODY, limits.max_num_seqs + snapshot)
        self.slots = IndexPool(limits.max_num_seqs)
        self.line, self.counts = WaitingLine(), SchedulerCounts()
        self.rows = RowLimit(limits.max_num_batched_tokens)
        self.lengths = lengths
        self._budget = DraftBudget(self.table, limits)
        self._growth = BlockGrowth(self.table, self.blocks, limits)
        self._on_freed = on_freed
        self._entries: dict[int, Entry] = {}
        self._decoding = _NOBODY  # slots in order of their first token; replaced, never written to
        self._prefilling: list[int] = []  # slots in order of admission
        self._num_submitted = 0

    @property
    def unfinished(self) -> int:
        return len(self._entries)

    @property
    def num_decoding(self) -> int:
        return len(self._decoding)

    @property
    def num_prefilling(self) -> int:
        return len(self._prefilling)

    def add(self, request: Request, length_end: int, stop_ids: list[int]) -> None:
        """A checked request joins the waiting line."""
        entry = Entry(request=request, arrival=self._num_submitted, length_end=length_end, stop_ids=stop_ids)
        self._num_submitted += 1
        self._entries[request.request_id] = entry
        self.line.push(entry)

    def finish(self, request_ids: list[int]) -> list[int]:
        """Whatever these hold is free again, at any moment of their lives. Returns the slots they had."""
        slots = []
        for request_id in request_ids:
            entry = self._entries.pop(request_id)
            self.rows.forget(request_id)
            if entry.waiting:
                self.line.remove(entry)
            if entry.slot != NO_SLOT:
                slots.append(entry.slot)
                self._on_freed(self.blocks.release(self.table.take_blocks(entry.slot)), entry.slot)
                self.table.leave(entry.slot)
            if self.prefix is not None:
                self.prefix.leave(request_id)
        if slots:
            self._drop_stood_down()
            self.slots.release(np.array(slots))
        return slots

    def holds(self, request_id: int) -> bool:
        return request_id in self._entries

    def request_ids(self) -> list[int]:
        """All that have not finished."""
        return list(self._entries)

    def take_notices(self) -> list[str]:
        """What the user should know, each once."""
        notice = "" if self.lengths is None else self.lengths.take_notice()
        found = [notice, self.prefix.cache.take_notice() if self.prefix is not None else None]
        return [text for text in found if text]

    def schedule(self) -> ScheduledStep | None:
        """The next step, or None where nothing can run before a step in flight is committed."""
        preempted = self.counts.preemptions
        self._growth.grow(self._decoding, self._make_room)
        decode = self._runnable()
        room = self.rows.now - len(decode)
        chunk_room = min(room, self.limits.max_prefill_tokens) if len(decode) else room
        admitted: list[Admission] = []
        chunks: list[tuple[int, int]] = []
        if self._prefilling or self.line:
            may_admit = self.counts.preemptions == preempted
            chunks = self._fill(chunk_room, admitted, may_admit)
        if not chunks and not len(decode):
            return None
        scheduled = make_step(self.table, decode, chunks, admitted)
        if self.lengths is not None:
            self._budget.plan(self.lengths, scheduled, room)
        if self.prefix is not None:
            self.prefix.plan(scheduled)
        self._advance(scheduled, chunks)
        return scheduled

    def commit(self, scheduled: ScheduledStep, output: StepOutput) -> Committed:
        """Append the tokens of a step to its sequences and say which of them are at an end. The caller then finishes those."""
        committed = book(self.table, scheduled, output)
        self.rows.went_well(self.table.request_id[committed.slots].tolist())
        if self.prefix is not None:
            self.prefix.settle(scheduled, committed)
        self.counts.dropped_results += len(scheduled.sampled) - len(committed.slots)
        if self.lengths is not None:
            self._budget.observe(self.lengths, scheduled, output)
        return committed

    def _runnable(self) -> np.ndarray:
        """Running answers that do not end for length with what is in flight already."""
        table, decoding = self.table, self._decoding
        if not self.limits.async_depth or not len(decoding):
            return decoding
        return decoding[table.num_tokens[decoding] + table.pending[decoding] < table.length_end[decoding]]

    def _advance(self, scheduled: ScheduledStep, chunks: list[tuple[int, int]]) -> None:
        """Book the rows of a step as on their way; sequences whose prompt is through join the running answers."""
        table = self.table
        table.pending[scheduled.sampled_slots] += 1
        through = []
        for slot, num_rows in chunks:
            table.num_computed[slot] += num_rows
            if table.num_computed[slot] == table.num_tokens[slot]:
                table.stage[slot] = DECODE
                through.append(slot)
        if through:
            self._drop_stood_down()
            self._decoding = np.concatenate([self._decoding, np.array(through, dtype=np.int64)])

    def _fill(self, room: int, admitted: list[Admission], may_admit: bool) -> list[tuple[int, int]]:
        """Chunks (slot, rows) of at most `room` rows in all; admits while rows, slots and blocks last."""
        chunks: list[tuple[int, int]] = []
        for slot in self._prefilling:
            if room <= 0:
                return chunks
            num_rows = self._chunk_rows(slot, room)
            chunks.append((slot, num_rows))
            room -= num_rows
        while may_admit and room > 0:
            newcomer = self._admit_first(admitted)
            if newcomer is None:
                break
            num_rows = self._chunk_rows(newcomer, room)
            chunks.append((newcomer, num_rows))
            room -= num_rows
        return chunks

    def _chunk_rows(self, slot: int, room: int) -> int:
        rest = int(self.table.num_tokens[slot] - self.table.num_computed[slot])
        return min(room, rest, self.rows.rows_of(int(self.table.request_id[slot])))

    def _admit_first(self, admitted: list[Admission]) -> int | None:
        """The head of the line gets its slot and blocks, or None where it has to wait."""
        if len(self._decoding) + len(self._prefilling) == self.slots.size:
            return None  # no slot is free, and nobody who waits has one
        table, entry = self.table, self.line.next(self.slots.num_free)
        if entry is None or not self.rows.may_join(
            entry.request.request_id, table.request_id[self._holders()].tolist()
        ):
            return None
        resumed = entry.slot != NO_SLOT
        num_tokens = int(table.num_tokens[entry.slot]) if resumed else len(entry.request.prompt_ids)
        num_blocks, hit = self.limits.blocks_for(num_tokens), None
        if self.prefix is not None:
            hit = self.prefix.look_up(entry)
            num_blocks = self.prefix.lacks(hit, num_tokens)
        if num_blocks + self._growth.margin(self._decoding) > self.blocks.num_free:
            return None
        self.line.take(entry)
        if not resumed:
            entry.slot = int(self.slots.allocate(1)[0])
            table.enter(entry.slot, entry.request, entry.arrival, entry.length_end, entry.stop_ids)
            admitted.append(Admission(entry.slot, entry.request, entry.length_end))
            self.counts.admitted += 1
        if self.prefix is not None and hit is not None:
            num_blocks = self.prefix.enter(entry, hit, resumed=resumed)
        table.give_blocks(entry.slot, self.blocks.allocate(num_blocks), self.limits.block_tokens)
        self.counts.recomputed_tokens += max(0, entry.lost_tokens - int(table.num_computed[entry.slot]))
        table.stage[entry.slot] = PREFILL
        self._prefilling.append(entry.slot)
        return entry.slot

    def _make_room(self) -> None:
        """The last in rank of all that hold blocks gives its own back."""
        self.preempt(best_first(self.table, self._holders())[-1])

    def _holders(self) -> np.ndarray:
        """Slots of all that hold blocks."""
        return np.concatenate([self._decoding, np.array(self._prefilling, dtype=np.int64)])

    def preempt(self, slot: int) -> None:
        """A sequence gives its blocks back and waits, to be computed again."""
        table = self.table
        self.counts.preemptions += 1
        entry = self._entries[int(table.request_id[slot])]
        entry.lost_tokens = int(table.num_computed[slot])
        self._on_freed(self.blocks.release(table.take_blocks(slot)), slot)
        table.stage[slot] = PREEMPTED
        table.lose_place(slot)
        self._drop_stood_down()
        self.line.push(entry)

    def _drop_stood_down(self) -> None:
        """Slots whose stage has changed leave the running lists."""
        stage = self.table.stage
        self._decoding = self._decoding[stage[self._decoding] == DECODE]
        self._prefilling = [slot for slot in self._prefilling if stage[slot] == PREFILL]
