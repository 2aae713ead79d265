"""The scheduler's dealings with the prefix cache: what newcomers share, which states a step saves, what its results leave.

S sequences of a step, D of them decoding · n snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.sequences import SequenceTable
from deepinfer.engine.step_plan import ScheduledStep
from deepinfer.engine.waiting import NO_SLOT, Entry

if TYPE_CHECKING:
    from deepinfer.cache.cached_sequence import Hit
    from deepinfer.cache.prefix_cache import PrefixCache
    from deepinfer.engine.booking import Committed
    from deepinfer.interfaces import StepPlan

_NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class CacheUse:
    """What a sequence got, for whoever asked for it."""

    cached_tokens: int  # of its prompt, not computed
    approximate: bool  # it follows from windows that were rebuilt from too little


class PrefixAdmission:
    """Turns slots and positions of the table into the cache's terms."""

    def __init__(self, cache: PrefixCache, table: SequenceTable, limits: EngineLimits) -> None:
        self.cache, self._table, self._limits = cache, table, limits
        self._next_full = np.full(
            limits.max_num_seqs, _NEVER, dtype=np.int64
        )  # tokens at which a slot has one more full block
        self._restores: list[tuple[int, int]] = []  # of the step that is being made
        self.news: dict[int, CacheUse] = {}  # request id → what nobody was told yet

    def look_up(self, entry: Entry) -> Hit:
        """What the head of the line would share."""
        request = entry.request
        usable = request.params.prompt_logprobs is None  # whose rows must all be computed
        num_prompt = len(request.prompt_ids)
        return self.cache.match(
            request.request_id, self._tokens(entry), request.cache_salt, num_prompt=num_prompt, usable=usable
        )

    def lacks(self, hit: Hit, num_tokens: int) -> int:
        """How many blocks admission takes out of those that count as free."""
        return self._limits.blocks_for(num_tokens) - len(hit.blocks) + self.cache.blocks.count_idle(hit.blocks)

    def enter(self, entry: Entry, hit: Hit, *, resumed: bool) -> int:
        """The admitted sequence owns what it shares, and begins where that ends. Returns the blocks that it still needs."""
        table, slot, request = self._table, entry.slot, entry.request
        self.cache.enter(request.request_id, self._tokens(entry), request.cache_salt, hit, resumed=resumed)
        table.give_blocks(slot, hit.blocks, self._limits.block_tokens)
        table.num_computed[slot] = hit.floors.start
        table.window_from[slot], table.upper_from[slot] = hit.floors.window_from, hit.floors.upper_from
        table.write_from[slot] = hit.floors.write_from
        if not resumed or hit.floors.approximate:
            use = self.cache.use_of(request.request_id)
            self.news[request.request_id] = CacheUse(use.cached_tokens, use.approximate)
        self._next_full[slot] = (len(hit.blocks) + 1) * self._limits.block_tokens
        if hit.snapshot is not None:
            self._restores.append((slot, hit.snapshot))
        return self._limits.blocks_for(int(table.num_tokens[slot])) - len(hit.blocks)

    def plan(self, scheduled: ScheduledStep) -> None:
        """Which states the step restores, and which it saves. Before the step counts as under way."""
        plan, table, cache = scheduled.plan, self._table, self.cache
        if self._restores:
            plan.restores = np.array(self._restores, dtype=np.int64)
            self._restores = []
        if not cache.snapshots.size:
            return
        found = self._decoding_boundaries(plan.slots[: plan.num_decode])
        if not plan.num_chunk_rows and not found:
            return
        ids = table.request_id[plan.slots[plan.num_decode :]].tolist()
        for c, (request_id, first, rows) in enumerate(zip(ids, plan.chunk_starts.tolist(), plan.chunk_rows.tolist())):
            due = cache.reserve(request_id, first, first + rows)
            found += [(plan.num_decode + c, boundary, snapshot) for boundary, snapshot in due]
        if found:
            plan.snapshots = np.array(found, dtype=np.int64)

    def settle(self, scheduled: ScheduledStep, committed: Committed) -> None:
        """A booked step: full blocks are entered, snapshots that were really written are kept."""
        plan, table = scheduled.plan, self._table
        if self._nothing_to_settle(scheduled, committed):
            return
        gains_S, failed_S = np.zeros(len(plan.slots), dtype=np.int64), np.zeros(len(plan.slots), dtype=bool)
        sequences = scheduled.sampled[committed.rows]
        gains_S[sequences], failed_S[sequences] = committed.counts, committed.failed
        ends_S = table.num_computed[plan.slots]
        starts_S = ends_S - gains_S
        ends_S[plan.num_decode :] = plan.chunk_starts + plan.chunk_rows
        starts_S[plan.num_decode :] = plan.chunk_starts
        good_S = (table.epoch[plan.slots] == scheduled.epochs) & ~failed_S
        for slot in plan.slots[failed_S].tolist():
            self.cache.forget(int(table.request_id[slot]))
        for s in np.flatnonzero(good_S & (ends_S >= self._next_full[plan.slots])).tolist():
            self._advance(int(plan.slots[s]), int(ends_S[s]))

        def owner(s: int, boundary: int) -> int | None:
            reached = good_S[s] and starts_S[s] <= boundary <= ends_S[s]
            return int(table.request_id[plan.slots[s]]) if reached else None

        self._end_states(plan, owner)

    def lose(self, scheduled: ScheduledStep) -> None:
        """A step was not carried out: what it should have saved is not there, and it restores nothing any more."""
        self._end_states(scheduled.plan, lambda s, boundary: None)

    def _end_states(self, plan: StepPlan, owner: Callable[[int, int], int | None]) -> None:
        """`owner(sequence, boundary)`: the request whose snapshot it is; None: it holds nothing."""
        for s, boundary, snapshot in plan.snapshots.tolist():
            self.cache.settle(owner(s, boundary), boundary, snapshot, decoding=s < plan.num_decode)
        self.cache.unpin(plan.restores[:, 1])

    def tell(self, events: list[TokenEvent]) -> None:
        """Put what is not told yet on the events of its sequences."""
        for event in events if self.news else ():
            if (use := self.news.pop(event.request_id, None)) is not None:
                event.cached_tokens, event.approximate = use.cached_tokens, use.approximate

    def leave(self, request_id: int) -> None:
        """The sequence has ended."""
        self.cache.leave(request_id)
        self.news.pop(request_id, None)

    def _nothing_to_settle(self, scheduled: ScheduledStep, committed: Committed) -> bool:
        """Whether the step was one of running answers alone, none of which came to the end of a block: almost all are."""
        plan, table = scheduled.plan, self._table
        if plan.num_chunk_rows or len(plan.snapshots) or len(plan.restores) or committed.failed.any():
            return False
        return bool((table.num_computed[plan.slots] < self._next_full[plan.slots]).all())

    def _decoding_boundaries(self, decode: np.ndarray) -> list[tuple[int, int, int]]:
        """Of running answers that may reach the end of a block in this step; lengths are bounds while others are in flight."""
        table, depth, size = self._table, self._limits.draft_depth, self._limits.block_tokens
        pending, known = table.pending[decode], table.num_tokens[decode]
        if (known + pending * (1 + depth) + depth < self._next_full[decode]).all():
            return []
        first = known - 1 + pending
        last = np.minimum(first + pending * depth + 1 + depth, table.length_end[decode] - 1)
        boundaries = (first // size + 1) * size
        found = []
        for s in np.flatnonzero(boundaries <= last).tolist():
            snapshot = self.cache.reserve_decoding(int(table.request_id[decode[s]]), int(boundaries[s]))
            if snapshot is not None:
                found.append((s, int(boundaries[s]), snapshot))
        return found

    def _advance(self, slot: int, num_computed: int) -> None:
        table, size = self._table, self._limits.block_tokens
        tokens = table.tokens[slot, table.pad : table.pad + num_computed]
        self.cache.advance(int(table.request_id[slot]), tokens, num_computed, table.block_tables[slot])
        self._next_full[slot] = (num_computed // size + 1) * size

    def _tokens(self, entry: Entry) -> np.ndarray:
        """All known tokens of a sequence: its prompt, or of a preempted one also what it was given."""
        if entry.slot == NO_SLOT:
            return entry.request.prompt_ids
        table = self._table
        return table.tokens[entry.slot, table.pad : table.pad + table.num_tokens[entry.slot]]
