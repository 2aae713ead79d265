"""The toy model with what a prefix cache asks of an executor: saved states, and rows that only rebuild a window."""

from __future__ import annotations

import numpy as np
from toy_executor import POISON, WINDOW, SomeDrafts, ToyExecutor, digest

from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.replay import OnHit, Replay
from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import StepInput, StepPlan


class ToyPrefixExecutor(ToyExecutor):
    """Snapshots are rings and tails of their own, full of poison until they are written."""

    def __init__(self, limits: EngineLimits, num_snapshots: int, acceptance: float = 0.7) -> None:
        super().__init__(limits, acceptance)
        self.saved_rings = np.full((num_snapshots, self.ring_slots), POISON, dtype=np.int64)
        self.saved_tails = np.full((num_snapshots, self.tail_slots), POISON, dtype=np.int64)
        self.saves: dict[tuple[int, int], list[int]] = {}  # slot, boundary → snapshots that this step fills
        self.num_poisoned_snapshots = 0
        self.rewritten = 0  # rows that left a shared block alone

    def submit(self, plan: StepPlan) -> None:
        assert len(set(plan.snapshots[:, 2].tolist())) == len(plan.snapshots), "two states in one snapshot"
        for slot, snapshot in plan.restores.tolist():
            self.rings[slot], self.tails[slot] = self.saved_rings[snapshot], self.saved_tails[snapshot]
        self.saves = {}
        for sequence, boundary, snapshot in plan.snapshots.tolist():
            self.saves.setdefault((int(plan.slots[sequence]), boundary), []).append(snapshot)
        super().submit(plan)
        within = {(int(plan.slots[s]), boundary) for s, boundary, _ in self.steps[-1].snapshots.tolist()}
        for (slot, boundary), snapshots in self.saves.items():
            if (slot, boundary) in within:  # the boundary is the end of the step: nothing after it was written
                self._save(slot, snapshots)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        snapshot = slot - self.limits.max_num_seqs
        if snapshot >= 0:
            self.saved_rings[snapshot], self.saved_tails[snapshot] = POISON, POISON
            self.num_poisoned_snapshots += 1
        super().poison(blocks, slot if snapshot < 0 else -1)

    def _write(self, step: StepInput, row: int, slot: int, table: np.ndarray, *, in_ring: bool) -> None:
        size, position, token = self.limits.block_tokens, int(step.positions[row]), int(step.token_ids[row])
        self._save(slot, self.saves.pop((slot, position), []))
        sequence = int(np.flatnonzero(step.state_slots == slot)[0])
        if position < step.write_from[sequence]:
            shared = self.blocks[table[position // size], position % size]
            assert shared == token, "a shared block holds other tokens"
            self.rewritten += 1
        super()._write(step, row, slot, table, in_ring=True)  # a boundary may lie in the middle of a chunk

    def _save(self, slot: int, snapshots: list[int]) -> None:
        for snapshot in snapshots:
            self.saved_rings[snapshot], self.saved_tails[snapshot] = self.rings[slot], self.tails[slot]

    def _read(self, step: StepInput, row: int, slot: int, table: np.ndarray) -> int:
        sequence = int(np.flatnonzero(step.state_slots == slot)[0])
        if not step.window_from[sequence]:
            return super()._read(step, row, slot, table)
        position, size = int(step.positions[row]), self.limits.block_tokens
        tail = int(self.tails[slot, (position - 1) % self.tail_slots]) if position % 2 else -7
        paged = [int(self.blocks[table[p // size], p % size]) for p in range(position + 1)]
        seen = range(max(0, position - WINDOW + 1, step.window_from[sequence]), position + 1)
        window = [int(self.rings[slot, p % self.ring_slots]) for p in seen]
        return digest(paged, window, tail, step.ngram_ids[row].tolist(), self.requests[slot].seed, position + 1)


def toy_prefix_engine(
    limits: EngineLimits, *, on_hit: OnHit = "snapshot", num_snapshots: int = 16, snapshot_every: int = 2
) -> Engine:
    """The toy has one layer with a window, so `exact` replays as few tokens as that sees."""
    prefix = PrefixCache(
        num_blocks=limits.num_blocks,
        num_snapshots=num_snapshots,
        block_tokens=limits.block_tokens,
        snapshot_every=snapshot_every,
        replay=Replay(keep_tokens=0, on_hit=on_hit, sliding_window=WINDOW, num_layers=1, boundary=1),
        numerics_digest="toy",
    )
    executor = ToyPrefixExecutor(limits, num_snapshots)
    lengths = SomeDrafts() if limits.draft_depth else None
    return Engine(executor, limits, lengths=lengths, prefix=prefix, seed_entropy=5, poison_freed=True)
