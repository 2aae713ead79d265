"""The device's memory: rows of plans, drafts within budget and room, tokens after them."""

import numpy as np
import pytest

from deepinfer.engine.decode_state import DecodeState
from deepinfer.interfaces import Drafts, StepPlan

NOTHING = np.zeros(0, dtype=np.int64)


def plan_of(
    slots: list[int], num_decode: int, chunks: list[tuple[int, list[int], bool]] = (), num_drafts: int = 0
) -> StepPlan:
    """`chunks` of (first position, tokens, sampled)."""
    zeros = np.zeros(len(slots), dtype=np.int64)
    return StepPlan(
        slots=np.array(slots),
        num_decode=num_decode,
        block_tables=np.zeros((len(slots), 1), dtype=np.int64),
        chunk_starts=np.array([first for first, _, _ in chunks], dtype=np.int64),
        chunk_rows=np.array([len(tokens) for _, tokens, _ in chunks], dtype=np.int64),
        chunk_tokens=np.array([token for _, tokens, _ in chunks for token in tokens], dtype=np.int64),
        chunk_sampled=np.array([sampled for _, _, sampled in chunks], dtype=bool),
        window_from=zeros,
        upper_from=zeros,
        write_from=zeros,
        num_drafts=num_drafts,
    )


def state_with(prompts: dict[int, list[int]], *, depth: int = 3, length_end: int = 30) -> DecodeState:
    state = DecodeState(num_slots=4, max_model_len=32, ngram_size=3, depth=depth)
    for slot, prompt in prompts.items():
        state.admit(slot, np.array(prompt), length_end)
    return state


def test_rows_of_a_mixed_step() -> None:
    state = state_with({2: [5, 6], 0: [1, 2, 3, 4, 5]})
    state.append(np.array([2]), np.array([7]), np.array([1]))
    state.keep_drafts(np.array([2]), Drafts(np.array([[8, 9, -1]]), np.array([[0.9, 0.8, 0.0]], np.float32)))
    plan = plan_of([2, 0, 1], 1, [(1, [2, 3], False), (0, [4], True)], num_drafts=5)
    resolved = state.resolve(plan)
    step, rows = resolved.step, resolved.rows
    assert step.token_ids.tolist() == [7, 8, 9, 2, 3, 4] and step.positions.tolist() == [2, 3, 4, 1, 2, 0]
    assert step.row_starts.tolist() == [0, 3, 5, 6]
    assert step.ngram_ids.tolist() == [[7, 6, 5], [8, 7, 6], [9, 8, 7], [2, 1, -1], [3, 2, 1], [4, -1, -1]]
    assert step.sample_rows.tolist() == [0, 1, 2, 5]
    assert rows.slots.tolist() == [2, 1] and rows.positions.tolist() == [3, 1]
    assert rows.row_starts.tolist() == [0, 3, 4] and rows.drafts[0].tolist() == [8, 9, -1]
    assert resolved.num_checked.tolist() == [2, 0] and resolved.num_decode_rows == 3


@pytest.mark.parametrize(("budget", "lengths"), [(0, [0, 0]), (1, [0, 1]), (3, [1, 2]), (99, [2, 3])])
def test_a_budget_goes_to_the_surest_drafts(budget: int, lengths: list[int]) -> None:
    state = state_with({0: [1], 1: [2]})
    drafts = Drafts(np.array([[3, 4, -1], [5, 6, 7]]), np.array([[0.8, 0.1, 0.0], [0.9, 0.9, 0.1]], np.float32))
    state.keep_drafts(np.array([0, 1]), drafts)
    assert state.resolve(plan_of([0, 1], 2, num_drafts=budget)).num_checked.tolist() == lengths


@pytest.mark.parametrize(("length_end", "checked"), [(2, 0), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_drafts_beyond_the_end_of_a_sequence_are_not_checked(length_end: int, checked: int) -> None:
    state = state_with({0: [1]}, length_end=length_end)
    state.keep_drafts(np.array([0]), Drafts(np.array([[3, 4, 5]]), np.ones((1, 3), np.float32)))
    resolved = state.resolve(plan_of([0], 1, num_drafts=3))
    assert resolved.num_checked.tolist() == [checked]
    assert state.wants_drafts(np.array([0])).tolist() == [length_end > 2]


def test_a_sequence_at_its_end_runs_its_last_row_again_and_nothing_beyond() -> None:
    state = state_with({0: [1, 2, 3]}, length_end=4)
    state.append(np.array([0]), np.array([9]), np.array([1]))
    state.keep_drafts(np.array([0]), Drafts(np.array([[3, 4, 5]]), np.ones((1, 3), np.float32)))
    step = state.resolve(plan_of([0], 1, num_drafts=3)).step
    assert (step.positions.tolist(), step.token_ids.tolist()) == ([2], [3])


def test_rejected_drafts_leave_nothing() -> None:
    state = state_with({0: [1], 1: [2]})
    drafts = Drafts(np.array([[3, 4, 5], [6, 7, 8]]), np.ones((2, 3), np.float32))
    state.keep_drafts(np.array([0, 1]), drafts)
    state.resolve(plan_of([0, 1], 2, num_drafts=6))
    state.append(np.array([0, 1]), np.array([3, 9, 6, 7, 8, 4]), np.array([2, 4]))
    assert state.num_tokens[:2].tolist() == [3, 5]
    step = state.resolve(plan_of([0, 1], 2, num_drafts=6)).step
    assert step.token_ids.tolist() == [9, 4] and step.ngram_ids.tolist() == [[9, 3, 1], [4, 8, 7]]


def test_a_chunk_takes_back_what_a_lost_step_left() -> None:
    state = state_with({0: [1, 2]})
    state.append(np.array([0]), np.array([3, 4]), np.array([2]))  # the host never heard of the 4
    state.keep_drafts(np.array([0]), Drafts(np.array([[3, 4, 5]]), np.ones((1, 3), np.float32)))
    resolved = state.resolve(plan_of([0], 0, [(0, [1, 2, 3], True)]))
    assert resolved.rows.positions.tolist() == [3] and resolved.rows.drafts.tolist() == [[-1, -1, -1]]
    state.append(np.array([0]), np.array([8]), np.array([1]))
    assert state.resolve(plan_of([0], 1)).step.ngram_ids.tolist() == [[8, 3, 2]]
