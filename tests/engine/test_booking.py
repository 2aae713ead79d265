"""Tokens of a step in the table: several at once, cut at a stop id, dropped where the sequence has lost its place."""

import numpy as np
import pytest
from toy_executor import toy_limits

from deepinfer.engine.booking import Committed, book
from deepinfer.engine.sequences import SequenceTable
from deepinfer.engine.step_plan import ScheduledStep, make_step
from deepinfer.interfaces import Drafts, Request, SamplingParams, StepOutput


def running(
    prompts: list[int], *, stop_ids: list[int] = (), length_end: int = 40
) -> tuple[SequenceTable, ScheduledStep]:
    """A step of sequences with prompts of so many tokens, in slots 0, 1, …"""
    table = SequenceTable(toy_limits(draft_depth=3))
    for slot, length in enumerate(prompts):
        request = Request(slot, np.arange(1, length + 1), SamplingParams(min_tokens=2), seed=0)
        table.enter(slot, request, slot, length_end, list(stop_ids))
        table.give_blocks(slot, np.arange(10) + 10 * slot, 4)
    scheduled = make_step(table, np.arange(len(prompts)), [], [])
    table.pending[: len(prompts)] += 1
    return table, scheduled


def output_of(*tokens: list[int], failed: list[bool] | None = None) -> StepOutput:
    counts = np.array([len(t) for t in tokens])
    return StepOutput(
        token_ids=np.array([t for some in tokens for t in some], dtype=np.int64),
        counts=counts,
        failed=np.array(failed or [False] * len(tokens)),
    )


def kept(committed: Committed, output: StepOutput) -> list[list[int]]:
    return [output.token_ids[f : f + n].tolist() for f, n in zip(committed.firsts, committed.counts)]


def test_several_tokens_go_to_the_end_of_each_sequence() -> None:
    table, scheduled = running([3, 5])
    committed = book(table, scheduled, output_of([7], [8, 9, 6]))
    assert table.num_tokens[:2].tolist() == [4, 8] and table.num_computed[:2].tolist() == [3, 7]
    assert table.tokens[1, table.pad : table.pad + 8].tolist() == [1, 2, 3, 4, 5, 8, 9, 6]
    assert not committed.stopped.any() and not committed.full.any() and table.pending[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("tokens", "left", "stopped"),
    [
        ([4, 4, 4, 4], [4, 4, 4, 4], False),
        ([0, 0, 4, 4], [0, 0, 4, 4], False),  # before min_tokens is reached a stop id is a token like any other
        ([4, 4, 0, 4], [4, 4, 0], True),
        ([4, 4, 9, 0], [4, 4, 9], True),
        ([4, 0, 4, 9], [4, 0, 4, 9], True),
    ],
)
def test_a_block_is_cut_at_the_first_stop_id(tokens: list[int], left: list[int], stopped: bool) -> None:
    table, scheduled = running([3, 2], stop_ids=[0, 9])
    output = output_of(tokens, [5])
    committed = book(table, scheduled, output)
    assert kept(committed, output) == [left, [5]] and committed.stopped.tolist() == [stopped, False]
    assert table.num_tokens[0] == 3 + len(left)


def test_a_failure_behind_a_stop_id_is_none() -> None:
    table, scheduled = running([3, 3], stop_ids=[0])
    committed = book(table, scheduled, output_of([4, 4, 0, 5], [4], failed=[True, True]))
    assert committed.failed.tolist() == [False, True] and committed.stopped.tolist() == [True, False]


def test_a_sequence_that_failed_at_once_has_no_token_and_is_not_full() -> None:
    table, scheduled = running([3, 3], length_end=3)
    committed = book(table, scheduled, output_of([], [4], failed=[True, False]))
    assert committed.full.tolist() == [False, True] and table.num_tokens[:2].tolist() == [3, 4]


def test_results_of_a_sequence_that_lost_its_place_are_dropped_whole() -> None:
    table, scheduled = running([3, 3, 3])
    table.lose_place(1)
    output = output_of([4, 5], [6, 7, 8], [9])
    output.drafts = Drafts(np.full((3, 3), 2), np.full((3, 3), 0.5, np.float32))
    committed = book(table, scheduled, output)
    assert committed.rows.tolist() == [0, 2] and kept(committed, output) == [[4, 5], [9]]
    assert table.num_tokens[:3].tolist() == [5, 3, 4] and table.pending[:3].tolist() == [0, 0, 0]
    assert np.isnan(table.confidence[:, 1]).all() and (table.drafts[1] == -1).all()


def test_confidences_are_kept_for_two_steps() -> None:
    table, _ = running([3])
    for value in (0.1, 0.2, 0.3):
        table.remember(np.array([0]), np.full((1, 3), 5), np.full((1, 3), value, np.float32))
    assert table.confidence[:, 0].round(3).tolist() == [[pytest.approx(0.3)] * 3, [pytest.approx(0.2)] * 3]
