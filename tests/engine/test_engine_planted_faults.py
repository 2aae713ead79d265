"""The equality of schedules catches what it is there for: each fault, planted, makes it fail."""

from collections.abc import Callable

import numpy as np
import pytest
from toy_executor import expected_answer, run_all, toy_engine, toy_limits

from deepinfer.cache.block_pool import IndexPool
from deepinfer.engine import scheduler
from deepinfer.engine.block_growth import BlockGrowth
from deepinfer.engine.decode_state import DecodeState, Resolved
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.sequences import SequenceTable
from deepinfer.interfaces import SamplingParams


def answers_are_right(draft_depth: int, async_depth: int) -> bool:
    """A crowded, chunked run with preemptions, against the plain model."""
    sizes = {"num_blocks": 16, "max_prefill_tokens": 5, "max_num_batched_tokens": 40}
    limits = toy_limits(**sizes, draft_depth=draft_depth, async_depth=async_depth)
    engine = toy_engine(limits)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompts = [[(k * 7 + j) % 50 for j in range(4 * k + 3)] for k in range(6)]
    ids = [
        engine.submit(np.array(p), SamplingParams(max_tokens=30, seed=k, ignore_eos=True))[0]
        for k, p in enumerate(prompts)
    ]
    try:
        ends = run_all(engine, max_steps=1000)
    except (AssertionError, IndexError, KeyError, ValueError):
        return False
    if [ends[i][0] for i in ids] != [expected_answer(p, k, params, limits) for k, p in enumerate(prompts)]:
        return False
    assert engine.stats().preemptions > 0
    if draft_depth:
        assert 0 < sum(engine.stats().accepted_at) < sum(engine.stats().checked_at)
    return True


def change_step(change: Callable) -> Callable:
    def plant(patch: pytest.MonkeyPatch) -> None:
        original = DecodeState.resolve

        def faulty(self, plan):
            resolved = original(self, plan)
            change(resolved)
            return resolved

        patch.setattr(DecodeState, "resolve", faulty)

    return plant


def reverse_blocks(resolved: Resolved) -> None:
    tables = resolved.step.block_tables
    for row in tables:
        used = row >= 0
        row[used] = row[used][::-1].copy()


def stale_ngrams(resolved: Resolved) -> None:
    resolved.step.ngram_ids[:, 1:] = np.roll(resolved.step.ngram_ids[:, 1:], 1, axis=1)


def one_ring_for_all(resolved: Resolved) -> None:
    resolved.step.state_slots = np.roll(resolved.step.state_slots, 1)


def sampled_as_another_sequence(resolved: Resolved) -> None:
    resolved.rows.slots = np.sort(resolved.rows.slots)


def sample_the_row_before(resolved: Resolved) -> None:
    resolved.step.sample_rows = np.maximum(resolved.step.sample_rows - 1, 0)


def positions_one_late(resolved: Resolved) -> None:
    resolved.step.positions = resolved.step.positions + 1


def lengths_never_corrected(patch: pytest.MonkeyPatch) -> None:
    """A device that takes every draft for accepted."""
    original = DecodeState.append

    def faulty(self, slots, token_ids, counts):
        original(self, slots, token_ids, counts)
        self.num_tokens[slots] += counts > 1

    patch.setattr(DecodeState, "append", faulty)


def nothing_recomputed(patch: pytest.MonkeyPatch) -> None:
    original = SequenceTable.take_blocks

    def faulty(self, slot):
        computed = self.num_computed[slot]
        ids = original(self, slot)
        self.num_computed[slot] = max(0, computed - 1)
        return ids

    patch.setattr(SequenceTable, "take_blocks", faulty)


def generated_tokens_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.preempt

    def faulty(self, slot):
        original(self, slot)
        self.table.num_tokens[slot] = self.table.num_prompt[slot]

    patch.setattr(Scheduler, "preempt", faulty)


def freed_one_block_early(patch: pytest.MonkeyPatch) -> None:
    original = IndexPool.release

    def faulty(self, ids):
        freed = original(self, ids)
        if self.size == 16 and self.num_free < 16:
            self._free[self._num_free] = 0
            self._num_free += 1
        return freed

    patch.setattr(IndexPool, "release", faulty)


def chunk_too_short(patch: pytest.MonkeyPatch) -> None:
    original = scheduler.make_step

    def faulty(table, decoding, chunks, admitted):
        return original(table, decoding, [(slot, max(1, rows - 1)) for slot, rows in chunks], admitted)

    patch.setattr(scheduler, "make_step", faulty)


def late_results_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SequenceTable, "lose_place", lambda self, slot: None)


def blocks_for_the_newest_token_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockGrowth, "_reach", lambda self, slots: self._table.num_tokens[slots])


FAULTS = [
    change_step(reverse_blocks),
    change_step(stale_ngrams),
    change_step(one_ring_for_all),
    change_step(sampled_as_another_sequence),
    change_step(sample_the_row_before),
    change_step(positions_one_late),
    nothing_recomputed,
    generated_tokens_forgotten,
    freed_one_block_early,
    chunk_too_short,
]
AHEAD = [lengths_never_corrected, late_results_kept, blocks_for_the_newest_token_only]  # where something runs ahead
DEPTHS = pytest.mark.parametrize(("draft_depth", "async_depth"), [(0, 0), (3, 0), (0, 1), (3, 1)])


@DEPTHS
def test_without_a_fault_all_is_right(draft_depth: int, async_depth: int) -> None:
    assert answers_are_right(draft_depth, async_depth)


@DEPTHS
@pytest.mark.parametrize("plant", FAULTS)
def test_a_planted_fault_is_caught(
    plant: Callable, draft_depth: int, async_depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not answers_are_right(draft_depth, async_depth)


@pytest.mark.parametrize("plant", AHEAD)
def test_a_planted_fault_of_running_ahead_is_caught(plant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert not answers_are_right(draft_depth=3, async_depth=1)
