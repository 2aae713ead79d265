import numpy as np
import pytest

from deepinfer.cache.snapshots import SnapshotPool


def kept(pool: SnapshotPool, block: int) -> int:
    snapshot = pool.reserve()
    assert snapshot is not None
    pool.keep(snapshot, block)
    return snapshot


def test_a_reserved_snapshot_serves_only_once_it_is_kept() -> None:
    pool = SnapshotPool(2, 10)
    snapshot = pool.reserve()
    assert snapshot is not None and pool.of(4) is None
    pool.keep(snapshot, 4)
    assert pool.of(4) == snapshot and pool.num_kept == 1
    dropped = pool.reserve()
    assert dropped is not None
    pool.drop(dropped)
    assert pool.num_unused == 1


def test_the_least_recently_used_gives_way() -> None:
    pool = SnapshotPool(2, 10)
    first, second = kept(pool, 1), kept(pool, 2)
    pool.pin(first)
    pool.unpin(first)  # used: now the younger one
    assert pool.reserve() == second and pool.of(2) is None and pool.of(1) == first
    assert pool.num_evicted == 1


def test_reserved_and_pinned_ones_stay() -> None:
    pool = SnapshotPool(2, 10)
    pool.pin(kept(pool, 1))
    assert pool.reserve() is not None
    assert pool.reserve() is None


def test_the_deepest_of_a_run() -> None:
    pool = SnapshotPool(3, 10)
    assert pool.deepest(np.array([3, 4, 5])) == (0, None)
    early, late = kept(pool, 3), kept(pool, 4)
    assert pool.deepest(np.array([3, 4, 5])) == (2, late)
    assert pool.deepest(np.array([3])) == (1, early)
    assert pool.deepest(np.array([], dtype=np.int64)) == (0, None)


def test_a_snapshot_leaves_with_its_block() -> None:
    pool = SnapshotPool(2, 10)
    kept(pool, 3)
    pool.forget(np.array([2, 3]))
    assert pool.of(3) is None and pool.num_unused == 2


def test_a_pinned_one_is_free_after_its_last_reader() -> None:
    pool = SnapshotPool(1, 10)
    snapshot = kept(pool, 3)
    pool.pin(snapshot)
    pool.pin(snapshot)
    pool.forget(np.array([3]))
    assert pool.of(3) is None and pool.reserve() is None
    pool.unpin(snapshot)
    assert pool.reserve() is None
    pool.unpin(snapshot)
    assert pool.reserve() == snapshot


def test_a_demoted_one_is_the_next_to_go() -> None:
    pool = SnapshotPool(2, 10)
    first, second = kept(pool, 1), kept(pool, 2)
    pool.demote(second, 2)
    pool.demote(first, 7)  # it is for another block by now: not meant
    assert pool.reserve() == second


def test_none_at_all() -> None:
    pool = SnapshotPool(0, 4)
    assert pool.reserve() is None and pool.deepest(np.array([1, 2])) == (0, None) and pool.num_kept == 0
    pool.forget(np.array([1]))


def test_a_block_has_one_snapshot() -> None:
    pool = SnapshotPool(2, 4)
    kept(pool, 1)
    snapshot = pool.reserve()
    with pytest.raises(AssertionError):
        pool.keep(snapshot, 1)


def test_whoever_wants_to_know_hears_of_every_one_that_is_free_again() -> None:
    """Dropped, evicted, left with its block, or given up by its last reader; before it can be reserved anew."""
    freed: list[int] = []
    pool = SnapshotPool(2, 10, freed.append)
    first, second = kept(pool, 1), pool.reserve()
    assert second is not None and not freed
    pool.drop(second)
    assert freed == [second]
    kept(pool, 2)
    pool.pin(first)
    assert pool.reserve() == second and freed == [second, second]  # evicted
    pool.forget(np.array([1]))
    assert freed == [second, second]  # somebody still reads it
    pool.unpin(first)
    assert freed == [second, second, first]
    third = kept(pool, 3)
    pool.forget(np.array([3]))
    assert freed[3:] == [third]
