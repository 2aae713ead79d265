"""Experts that change places while steps go on: slots always hold what the placement says, and the budget is kept."""

from collections import Counter

import pytest
from fake_slots import UNIT_BYTES, CountedPeers, FakeSlots, shuffled
from thread_peers import ThreadPeers, run_ranks

from deepinfer.parallel.eplb.moves import Mover
from deepinfer.parallel.eplb.schedule import layer_moves, rounds
from deepinfer.parallel.placement import Placement


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 3])
def test_every_step_finds_the_weights_that_the_placement_names(seed: int, most: int) -> None:
    now, then = (shuffled(100 * half + seed, 3, 12, 4, 4 * (seed % 3)) for half in range(2))

    def rank(peers: ThreadPeers) -> tuple[list[tuple[int, int]], list[list[int]], int]:
        counted, slots, placements = CountedPeers(peers), FakeSlots(now, peers.rank), []
        mover = Mover(counted, slots, then, budget_bytes=most * UNIT_BYTES + 1)
        while not mover.done:
            mover.step()
            slots.check()
            placements.append(slots.placement.expert_LP.tolist())
        assert mover.num_left == 0
        return counted.rows, placements, mover.moved_bytes

    found = run_ranks(4, rank)
    rows, placements, moved = zip(*found)
    assert all(other == placements[0] for other in placements), "all ranks switch a layer after the same step"
    assert placements[0][-1] == then.expert_LP.tolist()
    assert max(max(pair) for each in rows for pair in each) <= most
    assert sum(sent for each in rows for sent, _ in each) * UNIT_BYTES == moved[0]
    assert len({tuple(map(tuple, rows)) for rows in placements[0]}) > 2, "layers switch one by one"


def test_a_budget_below_one_expert_still_moves_one_a_step() -> None:
    now, then = Placement.initial(1, 8, 2), shuffled(3, 1, 8, 2, 0)

    def rank(peers: ThreadPeers) -> int:
        slots = FakeSlots(now, peers.rank)
        mover = Mover(peers, slots, then, budget_bytes=0)
        steps = 0
        while not mover.done:
            mover.step()
            steps += 1
        slots.check()
        return steps

    assert run_ranks(2, rank)[0] > 2


def test_ranks_take_what_they_have_and_holders_share_the_sending() -> None:
    """Expert 0 lies on ranks 0 to 3 and goes to ranks 4 to 7; expert 1 of rank 0 has a second slot there."""
    now = Placement.initial(1, 12, 8, 4).with_row(0, [0, 1, 0, 2, 0, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11, 1])
    then = now.with_row(0, [1, 0, 7, 2, 9, 3, 11, 4, 0, 6, 0, 8, 0, 10, 0, 5])
    (moves,) = layer_moves(now, then)
    assert {(copy.source, copy.target) for copy in moves.local} == {(1, 0), (0, 1)}
    sent = Counter(copy.source // 2 for copy in moves.remote if copy.source in (0, 2, 4, 6))
    assert sent == {0: 1, 1: 1, 2: 1, 3: 1}
    assert all(now.expert_LP[0, copy.source] == then.expert_LP[0, copy.target] for copy in moves.remote)


def test_what_waits_for_its_layer_fits_beside_the_slots() -> None:
    now, then = shuffled(1, 4, 32, 4, 8), shuffled(2, 4, 32, 4, 8)
    moves = layer_moves(now, then)
    waiting: Counter[int] = Counter()
    for step in rounds(moves, now.slots_per_rank, most=3):
        waiting.update(copy.target // now.slots_per_rank for copy in step.copies)
        assert max(waiting.values()) <= now.slots_per_rank
        if step.completes:
            waiting.clear()
    assert not waiting


def test_nothing_moves_between_equal_placements() -> None:
    now = shuffled(5, 2, 8, 2, 2)
    assert layer_moves(now, now) == []
