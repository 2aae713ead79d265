import numpy as np
import pytest

from deepinfer.cache.block_pool import IndexPool


def test_every_id_is_handed_out_once() -> None:
    pool = IndexPool(10)
    ids = np.concatenate([pool.allocate(3), pool.allocate(7)])
    assert sorted(ids.tolist()) == list(range(10))
    assert (pool.num_free, pool.num_used, pool.peak_used) == (0, 10, 10)


def test_the_id_freed_last_comes_first() -> None:
    pool = IndexPool(4)
    first = pool.allocate(2)
    pool.release(first[:1])
    assert pool.allocate(1).tolist() == first[:1].tolist()


def test_a_shared_id_is_free_when_its_last_owner_lets_go() -> None:
    pool = IndexPool(4)
    ids = pool.allocate(2)
    pool.share(ids[:1])
    assert pool.release(ids).tolist() == ids[1:].tolist()
    assert pool.owners(int(ids[0])) == 1 and pool.num_free == 3
    assert pool.release(ids[:1]).tolist() == ids[:1].tolist()
    assert pool.num_free == 4


def test_misuse_is_caught() -> None:
    pool = IndexPool(2)
    ids = pool.allocate(2)
    with pytest.raises(AssertionError, match="1 asked, 0 of 2 free"):
        pool.allocate(1)
    pool.release(ids)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(ids[:1])
    with pytest.raises(AssertionError, match="free id"):
        pool.share(ids)
    with pytest.raises(ValueError, match="empty"):
        IndexPool(0)


def test_random_use_agrees_with_a_plain_model() -> None:
    rng = np.random.default_rng(3)
    pool, owners = IndexPool(23), dict.fromkeys(range(23), 0)
    for _ in range(3000):
        used = np.array([i for i, n in owners.items() if n], dtype=np.int64)
        action = rng.integers(3)
        if action == 0 and pool.num_free:
            for i in pool.allocate(int(rng.integers(1, pool.num_free + 1))).tolist():
                assert owners[i] == 0
                owners[i] = 1
        elif len(used):
            some = rng.permutation(used)[: rng.integers(1, len(used) + 1)]
            if action == 1:
                pool.share(some)
                owners.update({i: owners[i] + 1 for i in some.tolist()})
            else:
                freed = set(pool.release(some).tolist())
                owners.update({i: owners[i] - 1 for i in some.tolist()})
                assert freed == {i for i in some.tolist() if owners[i] == 0}
        assert pool.num_used == sum(n > 0 for n in owners.values())
