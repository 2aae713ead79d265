from collections import OrderedDict

import numpy as np
import pytest

from deepinfer.cache.cached_blocks import CachedBlocks


def test_idle_blocks_are_taken_last_and_the_oldest_first() -> None:
    evicted: list[int] = []
    pool = CachedBlocks(8, on_evicted=lambda ids: evicted.extend(ids.tolist()))
    first, second = pool.allocate(3), pool.allocate(3)
    pool.mark_cached(first)
    pool.mark_cached(second)
    assert pool.release(first).tolist() == [] and pool.release(second).tolist() == []
    assert (pool.num_free, pool.num_idle, pool.num_used) == (8, 6, 0)
    assert not set(pool.allocate(2).tolist()) & {*first.tolist(), *second.tolist()} and not evicted
    assert (
        pool.allocate(4).tolist() == evicted == [*first[::-1].tolist(), int(second[-1])]
    )  # a sequence's end goes first
    assert pool.num_evicted == 4 and pool.num_free == 2


def test_an_owner_pins() -> None:
    pool = CachedBlocks(4)
    ids = pool.allocate(4)
    pool.mark_cached(ids)
    pool.release(ids)
    pool.share(ids[:2])
    assert pool.count_idle(ids) == 2 and pool.num_free == 2
    assert sorted(pool.allocate(2).tolist()) == sorted(ids[2:].tolist())
    with pytest.raises(AssertionError, match="1 asked, 0 of 4 free"):
        pool.allocate(1)


def test_use_makes_a_block_young_again() -> None:
    pool = CachedBlocks(2)
    a, b = pool.allocate(1), pool.allocate(1)
    pool.mark_cached(np.concatenate([a, b]))
    pool.release(a)
    pool.release(b)
    pool.share(a)
    pool.release(a)
    assert pool.allocate(2).tolist() == [*b.tolist(), *a.tolist()]


def test_an_evicted_block_is_an_ordinary_one() -> None:
    pool = CachedBlocks(1)
    (block,) = pool.allocate(1)
    pool.mark_cached(np.array([block]))
    pool.release(np.array([block]))
    pool.allocate(1)
    assert pool.release(np.array([block])).tolist() == [block]
    with pytest.raises(AssertionError, match="free id"):
        pool.share(np.array([block]))


def test_unmarked_blocks_are_free_as_soon_as_nobody_owns_them() -> None:
    pool = CachedBlocks(4)
    ids = pool.allocate(4)
    pool.mark_cached(ids)
    pool.release(ids[2:])
    assert pool.unmark(ids[1:3]).tolist() == ids[2:3].tolist()
    assert (pool.num_free, pool.num_idle) == (2, 1)
    assert pool.release(ids[:2]).tolist() == ids[1:2].tolist()
    assert (pool.num_free, pool.num_idle) == (4, 2)


def test_misuse_is_caught() -> None:
    pool = CachedBlocks(2)
    ids = pool.allocate(2)
    pool.mark_cached(ids)
    with pytest.raises(AssertionError):
        pool.mark_cached(ids[:1])
    pool.release(ids)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(ids[:1])


def test_random_use_agrees_with_a_plain_model() -> None:
    rng = np.random.default_rng(5)
    size = 19
    evicted: list[int] = []
    pool = CachedBlocks(size, on_evicted=lambda ids: evicted.extend(ids.tolist()))
    owners, cached, idle = dict.fromkeys(range(size), 0), set(), OrderedDict()
    for _ in range(4000):
        owned = [i for i, n in owners.items() if n]
        action = rng.integers(5)
        if action == 0 and pool.num_free:
            num_plain = size - len(owned) - len(idle)
            evicted.clear()
            taken = pool.allocate(int(rng.integers(1, pool.num_free + 1))).tolist()
            expected = list(idle)[: max(0, len(taken) - num_plain)]
            assert evicted == expected == taken[len(taken) - len(expected) :]
            for i in taken:
                assert owners[i] == 0
                owners[i] = 1
            for i in expected:
                del idle[i]
                cached.discard(i)
        elif action == 1 and (usable := [*owned, *idle]):
            some = rng.permutation(usable)[: rng.integers(1, len(usable) + 1)]
            pool.share(some)
            for i in some.tolist():
                owners[i] += 1
                idle.pop(i, None)
        elif action == 2 and owned:
            some = rng.permutation(owned)[: rng.integers(1, len(owned) + 1)]
            freed = pool.release(some).tolist()
            for i in some.tolist()[::-1]:
                owners[i] -= 1
                if not owners[i] and i in cached:
                    idle[i] = None
            assert freed == [i for i in some.tolist() if not owners[i] and i not in cached]
        elif action == 3 and (plain := [i for i in owned if i not in cached]):
            some = rng.permutation(plain)[: rng.integers(1, len(plain) + 1)]
            pool.mark_cached(some)
            cached.update(some.tolist())
        elif action == 4 and cached and rng.integers(4) == 0:
            some = rng.permutation(sorted(cached))[:2]
            assert pool.unmark(some).tolist() == [i for i in some.tolist() if not owners[i]]
            for i in some.tolist():
                cached.discard(i)
                idle.pop(i, None)
        assert (pool.num_idle, pool.num_used) == (len(idle), sum(n > 0 for n in owners.values()))
        assert pool.num_free == size - pool.num_used


def test_bytes_per_block() -> None:
    assert CachedBlocks(100_000).nbytes / 100_000 < 18
