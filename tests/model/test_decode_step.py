"""A decode step that is resolved on the device is the host's, to the last bit of every row and byte of the caches."""

import gc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from decode_worlds import CONFIDENCES, Worlds
from fused_models import golden, pair

from deepinfer.model.fused.decode_sizes import default_sizes, graph_sizes, power_of_two, shared_size, size_of
from deepinfer.model.fused.step_graphs import first_cause, no_collection
from deepinfer.ops.draft_allocation import allocate
from deepinfer.speculation.allocation import allocate as allocate_on_host

SLOTS, LENGTH, DEPTH = 6, 120, 5


def worlds(seed: int, compact: bool = False, **options: int | None) -> Worlds:
    model = pair(golden, "bfloat16", compact).fused.model
    return Worlds(model, num_slots=SLOTS, max_model_len=LENGTH, depth=DEPTH, seed=seed, **options)


@pytest.mark.parametrize("seed", range(3))
def test_random_plans_are_resolved_as_on_the_host(seed: int) -> None:
    """Any sequences in any order, budgets from none to all, ends that come near, sizes with and without padding."""
    most = (None, 3, None)[seed]  # drafts of a sequence that are checked
    both = worlds(seed, verify_length=most)
    step = both.step(features=True, row_sizes=[(), (4, 9, 40), (7,)][seed] or None, verify_length=most)
    for slot in range(SLOTS):
        cuts = (int(both.rng.integers(1, 10)),)
        both.admit(slot, int(both.rng.integers(11, 60)), int(both.rng.integers(62, LENGTH + 1)), cuts)
    both.go_on(np.arange(SLOTS), np.ones(SLOTS, dtype=np.int64))
    seen = set()
    for _ in range(14):
        slots = both.rng.permutation(SLOTS)[: both.rng.integers(1, SLOTS + 1)]
        plan = both.plan(slots, int(both.rng.choice([0, 1, 3, 8, 100])))
        hidden_TD, rows, checked = both.both(step, plan)
        assert torch.equal(rows.hidden_TD[: len(hidden_TD)], hidden_TD)
        assert rows.features_TF is not None and rows.features_TF.isfinite().all()
        both.assert_equal()
        both.accept(slots, checked)
        both.assert_equal()
        seen.add((len(slots), int(checked.sum())))
    assert len(seen) > 8 and max(drafts for _, drafts in seen) > 5


def test_features_are_those_of_the_hosts_pass() -> None:
    both = worlds(7)
    step = both.step(features=True)
    both.admit(0, 40, LENGTH)
    both.admit(1, 33, LENGTH)
    both.go_on(np.arange(2), np.ones(2, dtype=np.int64))
    plan = both.plan(np.arange(2), 6)
    wanted = both.model.forward_with_features(both.state.resolve(plan).step, both.host)
    rows = step(plan)
    assert rows.features_TF is not None and len(wanted[0]) > 2
    assert torch.equal(rows.hidden_TD[: len(wanted[0])], wanted[0])
    assert torch.equal(rows.features_TF[: len(wanted[1])], wanted[1])


@pytest.mark.parametrize("compact", [False, True], ids=["masked", "compact"])
def test_floors_of_a_bounded_replay_are_obeyed(compact: bool) -> None:
    """Right after a prompt whose upper layers began late, windows of the upper layers are short; so are a suffix's."""
    both = worlds(11, compact)
    step = both.step(row_sizes=[16])
    floors = {"window_from": np.array([0, 38]), "upper_from": np.array([46, 38]), "write_from": np.array([0, 42])}
    for slot, length in ((0, 50), (1, 40)):
        both.admit(slot, length, LENGTH)
        first = int(floors["upper_from"][slot])
        tokens = both.state.tokens_NL[slot, both.state.pad + first :][: length - first].astype(np.int64)
        both.chunk(slot, first, tokens, **{name: floor[[slot]] for name, floor in floors.items()})
    both.go_on(np.arange(2), np.ones(2, dtype=np.int64))
    none = dict.fromkeys(("window_from", "upper_from"), np.zeros(2, dtype=np.int64))
    without = step(both.plan(np.arange(2), 4, **floors | none)).hidden_TD.clone()
    for number in range(4):
        hidden_TD, rows, checked = both.both(step, both.plan(np.arange(2), 4, **floors))
        assert torch.equal(rows.hidden_TD[: len(hidden_TD)], hidden_TD)
        assert number or not torch.equal(without[: len(hidden_TD)], hidden_TD), "floors were within reach"
        both.assert_equal()
        both.accept(np.arange(2), checked)


def test_a_sequence_at_its_end_runs_its_last_row_again() -> None:
    both = worlds(3)
    both.admit(2, 20, 22)
    both.admit(4, 20, 60)
    step = both.step()
    for _ in range(2):
        both.go_on(np.array([4, 2]), np.ones(2, dtype=np.int64))
        hidden_TD, rows, checked = both.both(step, both.plan(np.array([4, 2]), 100))
    assert torch.equal(rows.hidden_TD[: len(hidden_TD)], hidden_TD) and checked[1] == 0
    assert int(rows.positions_T[len(hidden_TD) - 1]) == 20
    both.assert_equal()


def test_padding_reads_and_writes_its_own_slot_only() -> None:
    """Everything that is not the live sequence's is NaN and stays as it is; padded rows are numbers all the same."""
    both = worlds(5)
    both.admit(3, 30, LENGTH)
    before = both.device.state.clone(), both.device.blocks.clone()
    rows = both.step(row_sizes=[24])(both.plan(np.array([3])))
    assert len(rows.hidden_TD) == 24 and rows.hidden_TD.isfinite().all()
    assert (rows.slots_T[1:] == SLOTS).all() and not rows.positions_T[1:].any()
    others = [slot for slot in range(SLOTS) if slot != 3]
    assert torch.equal(before[0][others], both.device.state[others])
    mine = both.tables[3].tolist()
    foreign = [block for block in range(both.device.num_blocks) if block not in mine]
    assert torch.equal(before[1][foreign], both.device.blocks[foreign])
    assert both.sequences.num_tokens_N[-1] == 1 and (both.sequences.drafts_NK[-1] == -1).all()


def test_padding_never_changes_a_row() -> None:
    """The same step padded to its own size and to larger ones, with wider tables."""
    found = []
    for sizes in (None, [9], [40]):
        both = worlds(6)
        for slot in (0, 1, 2):
            both.admit(slot, 30 + slot, LENGTH)
        both.go_on(np.arange(3), np.ones(3, dtype=np.int64))
        rows = both.step(row_sizes=sizes)(both.plan(np.array([2, 0, 1]), 5))
        found.append(rows.hidden_TD[: int(rows.row_starts_S1[-1])].clone())
    assert len(found[0]) == 8 and all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("seed", range(20))
def test_budgets_are_handed_out_as_on_the_host(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, depth = int(rng.integers(1, 40)), int(rng.integers(1, 8))
    confidence = rng.choice(CONFIDENCES, (count, depth)) if seed % 2 else rng.random((count, depth), dtype=np.float32)
    available = rng.integers(0, depth + 1, count)
    for budget in (0, 1, 2, int(available.sum()) // 2, int(available.sum()), 1000):
        lengths = allocate(
            torch.from_numpy(confidence), torch.from_numpy(available).int(), torch.tensor(budget, dtype=torch.int32)
        )
        assert lengths.tolist() == allocate_on_host(confidence, available, budget).tolist()


def test_sizes_are_fine_and_end_where_they_must() -> None:
    sizes = default_sizes(3000)
    assert sizes[:10] == [1, 2, 3, 4, 5, 6, 7, 8, 16, 24] and sizes[-1] == 3000
    assert {64, 96, 256, 320, 1024, 1152} <= set(sizes)
    assert all(b - a <= max(8, a // 2) for a, b in pairwise(sizes)) and sizes == sorted(set(sizes))
    assert [default_sizes(most)[-1] for most in (1, 8, 9, 100)] == [1, 8, 9, 100]
    assert [size_of(n, sizes) for n in (1, 9, 16, 17, 3000)] == [1, 16, 16, 24, 3000]
    assert [power_of_two(n) for n in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    with pytest.raises(AssertionError, match="3001 do not fit"):
        size_of(3001, sizes)


def test_sizes_that_save_no_time_get_no_graph() -> None:
    rows, seconds = [1, 2, 4, 8, 16], [1.0, 1.005, 1.2, 1.205, 2.0]
    assert graph_sizes(rows, seconds, 16) == [2, 8, 16]
    assert graph_sizes(rows, seconds, 16, tolerance=0.0) == rows
    assert graph_sizes(rows, seconds, 6) == [2, 6]
    assert graph_sizes(rows, seconds, 32) == [2, 8, 32]
    assert graph_sizes(rows, [1.0] * 5, 16) == [16]


def test_what_does_not_fit_is_refused() -> None:
    both = worlds(1)
    with pytest.raises(ValueError, match="graphs=True"):
        both.step(graphs=True)
    step = both.step()
    both.admit(0, 20, LENGTH)
    with pytest.raises(AssertionError, match="no chunks"):
        step(replace(both.plan(np.array([0])), num_decode=0))
    with pytest.raises(AssertionError, match="more backtrack"):
        Worlds(both.model, num_slots=2, max_model_len=LENGTH, depth=9, seed=0).step()


def test_nothing_is_collected_during_a_capture_and_everything_after_it() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError, match="stop"), no_collection():
        assert not gc.isenabled()
        raise ValueError("stop")
    assert gc.isenabled()


def test_the_cause_of_a_fault_is_what_began_it() -> None:
    """A capture that fails also fails to end; of those errors the first one says why."""
    with pytest.raises(RuntimeError) as found:
        try:
            raise AssertionError("this launch waits\nand more")
        finally:
            raise RuntimeError("the capture was invalidated")
    assert first_cause(found.value) == "this launch waits"
    assert first_cause(ValueError()) == "ValueError"


def test_ranks_that_share_experts_pad_to_about_as_many_rows() -> None:
    sizes = [4, 8, 16]
    assert [shared_size(3, sizes, shared) for shared in (0, 4, 8, 12, 16, 500)] == [
        *((4, 0), (4, 0), (8, 0), (8, 12), (16, 0), (16, 500))
    ]
    with pytest.raises(AssertionError, match="agreed on 4 rows, this one has 8"):
        shared_size(5, sizes, 4)
