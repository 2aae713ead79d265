"""Which rows run next: continuous batching over paged blocks, with admission by memory and preemption by recomputation.

Rules, in the order in which they are applied to every step:

1. Every running answer gets its one row. One that needs a block when none is free takes the blocks of a victim: the lowest
   priority, among those the newest; possibly its own. The oldest request of the highest priority is never a victim of
   others, and any single request fits alone (`limits.max_total_tokens`), so something always moves.
2. Prompts go on where they stopped, oldest first, then new ones are admitted: by priority, then in order of submission, never
   past one that does not fit yet. While answers run, at most `max_prefill_tokens` prompt rows join a step.
3. An admitted sequence gets all blocks of its known tokens at once. A preempted one keeps its slot, its tokens and its
   sampling state and loses its blocks; its tokens, generated ones included, are computed again when it returns.

`schedule` advances the lengths as if the step had happened, `commit` books its results; between them lie the executor's
submit, sample and collect. Results of sequences that lost their place meanwhile are dropped (epochs), so that a second step
may be scheduled before the first is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deepinfer.cache.block_pool import IndexPool
from deepinfer.engine.flat_step import ScheduledStep, mixed_step
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.sequences import DECODE, PREEMPTED, PREFILL, SequenceTable
from deepinfer.engine.waiting import NO_SLOT, Entry, WaitingLine
from deepinfer.interfaces import Request, StepOutput

MARGIN_TOKENS = 16  # a running answer this close to its next block counts as needing it when others are admitted
_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Committed:
    """Results of a step that count, one entry for each sampled sequence that still holds its place."""

    slots: np.ndarray  # int64
    rows: np.ndarray  # int64; the row of the step's output
    token_ids: np.ndarray  # int64
    failed: np.ndarray  # bool: no token
    stopped: np.ndarray  # bool: the token is a stop id of the sequence
    full: np.ndarray  # bool: the sequence has all its tokens


@dataclass(slots=True)
class Counts:
    """Running totals of what the scheduler did."""

    admitted: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0


class Scheduler:
    """Owns the blocks, the slots, the waiting line and the table of sequences."""

    def __init__(
        self, limits: EngineLimits, *, on_freed: Callable[[np.ndarray, int], None] = lambda blocks, slot: None
    ) -> None:
        """`on_freed(blocks, slot)` hears of all that a sequence gives back, before anyone else can own it."""
        self.limits = limits
        self.table = SequenceTable(limits)
        self.blocks = IndexPool(limits.num_blocks)
        self.slots = IndexPool(limits.max_num_seqs)
        self.line = WaitingLine()
        self.counts = Counts()
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
            if entry.waiting:
                self.line.remove(entry)
            if entry.slot != NO_SLOT:
                slots.append(entry.slot)
                self._on_freed(self.blocks.release(self.table.take_blocks(entry.slot)), entry.slot)
                self.table.leave(entry.slot)
        if slots:
            self._drop_stood_down()
            self.slots.release(np.array(slots))
        return slots

    def holds(self, request_id: int) -> bool:
        return request_id in self._entries

    def request_ids(self) -> list[int]:
        """All that have not finished."""
        return list(self._entries)

    def schedule(self) -> ScheduledStep | None:
        """The next step, or None where nothing can run."""
        preempted = self.counts.preemptions
        self._grow()
        room = self.limits.max_num_batched_tokens - len(self._decoding)
        if len(self._decoding):
            room = min(room, self.limits.max_prefill_tokens)
        admitted: list[tuple[int, Request]] = []
        chunks: list[tuple[int, int]] = []
        if self._prefilling or self.line:
            may_admit = self.counts.preemptions == preempted
            chunks = self._fill(room, admitted, may_admit)
        if not chunks and not len(self._decoding):
            return None
        scheduled = mixed_step(self.table, self._decoding, chunks, admitted)
        self._advance(chunks)
        return scheduled

    def commit(self, scheduled: ScheduledStep, output: StepOutput) -> Committed:
        """Append the tokens of a step to its sequences and say which of them are at an end. The caller then finishes those."""
        table = self.table
        slots, token_ids, failed = scheduled.sample.slots, output.token_ids, output.failed
        assert len(token_ids) == len(failed) == len(slots), "the executor must answer row for row"
        rows = np.arange(len(slots))
        epochs = scheduled.epochs if len(scheduled.epochs) == len(slots) else scheduled.epochs[scheduled.sampled]
        alive = table.epoch[slots] == epochs
        if not alive.all():
            rows = np.flatnonzero(alive)
            slots, token_ids, failed = slots[rows], token_ids[rows], failed[rows]
        ends = table.num_tokens[slots]
        table.flat_tokens[slots * table.stride + (ends + table.pad)] = np.where(failed, 0, token_ids)
        ends += ~failed
        table.num_tokens[slots] = ends
        stopped = (table.stop_ids[slots] == token_ids[:, None]).any(axis=1)
        stopped &= ends > table.stop_from[slots]
        stopped &= ~failed
        return Committed(slots, rows, token_ids, failed, stopped, ends >= table.length_end[slots])

    def _advance(self, chunks: list[tuple[int, int]]) -> None:
        """Book the rows of a step as computed; sequences whose prompt is through join the running answers."""
        table = self.table
        table.num_computed[self._decoding] += 1
        through = []
        for slot, num_rows in chunks:
            table.num_computed[slot] += num_rows
            if table.num_computed[slot] == table.num_tokens[slot]:
                table.stage[slot] = DECODE
                through.append(slot)
        if through:
            self._drop_stood_down()
            self._decoding = np.concatenate([self._decoding, np.array(through, dtype=np.int64)])

    def _grow(self) -> None:
        """Every running answer gets the block of its next row, at others' cost where none is free."""
        table, decoding = self.table, self._decoding
        lacking = decoding[table.num_tokens[decoding] > table.capacity_tokens[decoding]]
        if not len(lacking):
            return
        if len(lacking) <= self.blocks.num_free:
            table.block_tables[lacking, table.num_blocks[lacking]] = self.blocks.allocate(len(lacking))
            table.num_blocks[lacking] += 1
            table.capacity_tokens[lacking] += self.limits.block_tokens
            return
        for slot in self._best_first(lacking):
            while table.stage[slot] == DECODE and not self.blocks.num_free:
                self._preempt(self._victim())
            if table.stage[slot] == DECODE:
                table.give_blocks(slot, self.blocks.allocate(1), self.limits.block_tokens)

    def _fill(self, room: int, admitted: list[tuple[int, Request]], may_admit: bool) -> list[tuple[int, int]]:
        """Chunks (slot, rows) of at most `room` rows in all; admits while rows, slots and blocks last."""
        chunks: list[tuple[int, int]] = []
        for slot in self._prefilling:
            if room <= 0:
                return chunks
            num_rows = min(room, int(self.table.num_tokens[slot] - self.table.num_computed[slot]))
            chunks.append((slot, num_rows))
            room -= num_rows
        while may_admit and room > 0:
            newcomer = self._admit_first(admitted)
            if newcomer is None:
                break
            num_rows = min(room, int(self.table.num_tokens[newcomer]))
            chunks.append((newcomer, num_rows))
            room -= num_rows
        return chunks

    def _admit_first(self, admitted: list[tuple[int, Request]]) -> int | None:
        """The head of the line gets its slot and blocks, or None where it has to wait."""
        table, entry = self.table, self.line.first()
        if entry is None or (entry.slot == NO_SLOT and not self.slots.num_free):
            return None
        resumed = entry.slot != NO_SLOT
        num_tokens = int(table.num_tokens[entry.slot]) if resumed else len(entry.request.prompt_ids)
        num_blocks = self.limits.blocks_for(num_tokens)
        if num_blocks + self._margin() > self.blocks.num_free:
            return None
        self.line.pop()
        if not resumed:
            entry.slot = int(self.slots.allocate(1)[0])
            table.enter(entry.slot, entry.request, entry.arrival, entry.length_end, entry.stop_ids)
            admitted.append((entry.slot, entry.request))
            self.counts.admitted += 1
        table.give_blocks(entry.slot, self.blocks.allocate(num_blocks), self.limits.block_tokens)
        table.stage[entry.slot] = PREFILL
        self._prefilling.append(entry.slot)
        return entry.slot

    def _margin(self) -> int:
        """Blocks to leave free at an admission: running answers will take them within the next few steps."""
        table, decoding = self.table, self._decoding
        return int((table.num_tokens[decoding] + MARGIN_TOKENS > table.capacity_tokens[decoding]).sum())

    def _best_first(self, slots: np.ndarray) -> list[int]:
        order = np.lexsort((self.table.arrival[slots], -self.table.priority[slots]))
        return [int(slot) for slot in slots[order]]

    def _victim(self) -> int:
        return self._best_first(np.concatenate([self._decoding, np.array(self._prefilling, dtype=np.int64)]))[-1]

    def _preempt(self, slot: int) -> None:
        table = self.table
        self.counts.preemptions += 1
        self.counts.recomputed_tokens += int(table.num_computed[slot])
        self._on_freed(self.blocks.release(table.take_blocks(slot)), slot)
        table.stage[slot] = PREEMPTED
        table.epoch[slot] += 1
        self._drop_stood_down()
        self.line.push(self._entries[int(table.request_id[slot])])

    def _drop_stood_down(self) -> None:
        """Slots whose stage has changed leave the running lists."""
        stage = self.table.stage
        self._decoding = self._decoding[stage[self._decoding] == DECODE]
        self._prefilling = [slot for slot in self._prefilling if stage[slot] == PREFILL]
