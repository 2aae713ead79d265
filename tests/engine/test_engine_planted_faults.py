"""The equality of schedules catches what it is there for: each fault, planted, makes it fail."""

from collections.abc import Callable

import numpy as np
import pytest
from toy_executor import expected_answer, run_all, toy_engine, toy_limits

from deepinfer.cache.block_pool import IndexPool
from deepinfer.engine import flat_step, scheduler
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.sequences import SequenceTable
from deepinfer.interfaces import SamplingParams


def answers_are_right() -> bool:
    """A crowded, chunked run with preemptions, against the plain model."""
    limits = toy_limits(num_blocks=16, max_prefill_tokens=5)
    engine = toy_engine(limits)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    prompts = [[(k * 7 + j) % 50 for j in range(4 * k + 3)] for k in range(6)]
    ids = [
        engine.submit(np.array(p), SamplingParams(max_tokens=30, seed=k, ignore_eos=True))[0]
        for k, p in enumerate(prompts)
    ]
    try:
        ends = run_all(engine, max_steps=1000)
    except (AssertionError, IndexError, KeyError):
        return False
    assert engine.stats().preemptions > 0
    return [ends[i][0] for i in ids] == [expected_answer(p, k, params, limits) for k, p in enumerate(prompts)]


def change_step(change: Callable) -> Callable:
    def plant(patch: pytest.MonkeyPatch) -> None:
        original = flat_step._flat_step

        def faulty(*args):
            scheduled = original(*args)
            change(scheduled)
            return scheduled

        patch.setattr(flat_step, "_flat_step", faulty)

    return plant


def reverse_blocks(scheduled) -> None:
    tables = scheduled.step.block_tables
    for row in tables:
        used = row >= 0
        row[used] = row[used][::-1].copy()


def stale_ngrams(scheduled) -> None:
    scheduled.step.ngram_ids[:, 1:] = np.roll(scheduled.step.ngram_ids[:, 1:], 1, axis=1)


def one_ring_for_all(scheduled) -> None:
    scheduled.step.state_slots = np.roll(scheduled.step.state_slots, 1)


def noise_keyed_by_row(scheduled) -> None:
    scheduled.sample.slots = np.sort(scheduled.sample.slots)


def sample_the_first_row_of_a_chunk(scheduled) -> None:
    step = scheduled.step
    step.sample_rows = step.row_starts[:-1][scheduled.sampled]
    scheduled.sample.positions = step.positions[step.sample_rows] + 1


def positions_one_late(scheduled) -> None:
    scheduled.step.positions = scheduled.step.positions + 1


def nothing_recomputed(patch: pytest.MonkeyPatch) -> None:
    original = SequenceTable.take_blocks

    def faulty(self, slot):
        computed = self.num_computed[slot]
        ids = original(self, slot)
        self.num_computed[slot] = max(0, computed - 1)
        return ids

    patch.setattr(SequenceTable, "take_blocks", faulty)


def generated_tokens_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._preempt

    def faulty(self, slot):
        original(self, slot)
        self.table.num_tokens[slot] = self.table.num_prompt[slot]

    patch.setattr(Scheduler, "_preempt", faulty)


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
    original = flat_step.mixed_step

    def faulty(table, decoding, chunks, admitted):
        return original(table, decoding, [(slot, max(1, rows - 1)) for slot, rows in chunks], admitted)

    patch.setattr(scheduler, "mixed_step", faulty)


FAULTS = [
    change_step(reverse_blocks),
    change_step(stale_ngrams),
    change_step(one_ring_for_all),
    change_step(noise_keyed_by_row),
    change_step(sample_the_first_row_of_a_chunk),
    change_step(positions_one_late),
    nothing_recomputed,
    generated_tokens_forgotten,
    freed_one_block_early,
    chunk_too_short,
]


def test_without_a_fault_all_is_right() -> None:
    assert answers_are_right()


@pytest.mark.parametrize("plant", FAULTS)
def test_a_planted_fault_is_caught(plant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert not answers_are_right()
