"""Slots of experts: copies take rows in turn, and ranks hold what lies in their slots."""

import numpy as np
import pytest

from deepinfer.parallel.placement import Placement, turns_by_content


def test_copies_follow_from_the_first_expert_on() -> None:
    placement = Placement.initial(2, 4, 3, 2)
    assert placement.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]] * 2 and placement.slots_per_rank == 2
    assert [placement.experts_of(1, rank).tolist() for rank in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_rows_take_the_copies_of_an_expert_in_turn() -> None:
    placement = Placement(np.array([[3, 0, 2, 2, 1, 2]]), 4, 2)
    picks_TX = np.array([[2, 0], [2, 3], [1, 2], [2, 0]])
    assert placement.slots(0, picks_TX, np.arange(4)).tolist() == [[2, 1], [3, 0], [4, 5], [2, 1]]
    assert placement.slots(0, picks_TX, 2 + np.arange(4))[:, 0].tolist() == [5, 2, 4, 5]
    assert placement.slots(0, picks_TX[:0], np.arange(0)).shape == (0, 2)


@pytest.mark.parametrize("chosen", [1, 2, 6])
@pytest.mark.parametrize("copies", [2, 3, 7])
def test_turns_by_content_share_rows_out_and_know_no_company(chosen: int, copies: int) -> None:
    """Within five standard deviations of an even share. All rows choose one expert, and differ in what else they choose."""
    picks_TX = np.random.default_rng(0).integers(0, 6000, (6000, chosen))
    picks_TX[:, -1] = 5
    picks_TX[:, 0] = np.arange(6000)
    turn_T = turns_by_content(picks_TX)
    assert turn_T.min() >= 0 and turn_T.dtype == np.int64
    share = 6000 / copies
    assert abs(np.bincount(turn_T % copies) - share).max() < 5 * share**0.5
    assert np.array_equal(turns_by_content(picks_TX[::-7]), turn_T[::-7])
    assert turns_by_content(picks_TX[:0]).shape == (0,)


@pytest.mark.parametrize("seed", range(4))
def test_every_slot_holds_the_expert_that_sends_rows_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.append(np.arange(9), rng.integers(0, 9, 6))) for _ in range(3)]
    placement = Placement(np.stack(rows), 9, 5)
    picks_TX = rng.integers(0, 9, (50, 4))
    for layer, row in enumerate(rows):
        slots_TX = placement.slots(layer, picks_TX, seed + np.arange(50))
        assert np.array_equal(row[slots_TX], picks_TX)
        assert len(np.unique(slots_TX)) == 15, "all copies are used"


def test_one_layer_changes_alone() -> None:
    before = Placement.initial(3, 4, 2, 2)
    after = before.with_row(1, np.array([3, 3, 2, 1, 0, 0]))
    assert after.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1], [3, 3, 2, 1, 0, 0], [0, 1, 2, 3, 0, 1]]
    assert before.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]] * 3
    assert after.slots(1, np.array([[3, 2]]), np.zeros(1, int))[0].tolist() == [0, 2]


def test_every_expert_lies_somewhere() -> None:
    with pytest.raises(AssertionError, match="every expert"):
        Placement(np.array([[0, 1, 1, 0]]), 3, 2)
