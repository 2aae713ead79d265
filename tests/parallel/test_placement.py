"""Slots of experts: copies take rows in turn, and ranks hold what lies in their slots."""

import numpy as np
import pytest

from deepinfer.parallel.placement import Placement


def test_copies_follow_from_the_first_expert_on() -> None:
    placement = Placement.initial(2, 4, 3, 2)
    assert placement.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]] * 2 and placement.slots_per_rank == 2
    assert [placement.experts_of(1, rank).tolist() for rank in range(3)] == [[0, 1], [2, 3], [0, 1]]


def test_rows_take_the_copies_of_an_expert_in_turn() -> None:
    placement = Placement(np.array([[3, 0, 2, 2, 1, 2]]), 4, 2)
    picks_TX = np.array([[2, 0], [2, 3], [1, 2], [2, 0]])
    assert placement.slots(0, picks_TX).tolist() == [[2, 1], [3, 0], [4, 5], [2, 1]]
    assert placement.slots(0, picks_TX, first_row=2)[:, 0].tolist() == [5, 2, 4, 5]
    assert placement.slots(0, picks_TX[:0]).shape == (0, 2)


@pytest.mark.parametrize("seed", range(4))
def test_every_slot_holds_the_expert_that_sends_rows_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.append(np.arange(9), rng.integers(0, 9, 6))) for _ in range(3)]
    placement = Placement(np.stack(rows), 9, 5)
    picks_TX = rng.integers(0, 9, (50, 4))
    for layer, row in enumerate(rows):
        slots_TX = placement.slots(layer, picks_TX, first_row=seed)
        assert np.array_equal(row[slots_TX], picks_TX)
        assert len(np.unique(slots_TX)) == 15, "all copies are used"


def test_one_layer_changes_alone() -> None:
    before = Placement.initial(3, 4, 2, 2)
    after = before.with_row(1, np.array([3, 3, 2, 1, 0, 0]))
    assert after.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1], [3, 3, 2, 1, 0, 0], [0, 1, 2, 3, 0, 1]]
    assert before.expert_LP.tolist() == [[0, 1, 2, 3, 0, 1]] * 3
    assert after.slots(1, np.array([[3, 2]]))[0].tolist() == [0, 2]


def test_every_expert_lies_somewhere() -> None:
    with pytest.raises(AssertionError, match="every expert"):
        Placement(np.array([[0, 1, 1, 0]]), 3, 2)
