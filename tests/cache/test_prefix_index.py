import numpy as np
import pytest

from deepinfer.cache.prefix_index import PrefixIndex


def random_digests(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 4), dtype=np.uint64)


@pytest.mark.parametrize("tag_bits", [31, 5, 1, 0])
def test_random_use_agrees_with_a_dictionary(tag_bits: int) -> None:
    """Also where the table's own hash is so weak that everything collides."""
    rng = np.random.default_rng(tag_bits)
    size = 60
    index, known = PrefixIndex(size, tag_bits=tag_bits), {}
    digests = random_digests(300)
    for _ in range(1500):
        chosen = rng.choice(len(digests), int(rng.integers(1, 20)), replace=False)
        if rng.integers(2):
            free = np.setdiff1d(np.arange(size), list(known.values()))
            chosen = chosen[: len(free)]
            blocks = rng.permutation(free)[: len(chosen)]
            expected = [known.get(i, b) for i, b in zip(chosen.tolist(), blocks.tolist())]
            assert index.insert(digests[chosen], blocks).tolist() == expected
            known.update(zip(chosen.tolist(), expected))
        elif known:
            gone = [int(i) for i in rng.choice(list(known), min(len(known), int(rng.integers(1, 9))), replace=False)]
            index.remove(np.array([known.pop(i) for i in gone]))
        for i in chosen.tolist():
            assert index.find(digests[i : i + 1]).tolist() == ([known[i]] if i in known else [])
        assert index.num_cached == len(known)
    assert len(index.find(digests[list(known)])) == len(known) > 0


def test_a_run_ends_at_the_first_block_that_is_missing() -> None:
    index, digests = PrefixIndex(64), random_digests(40)
    index.insert(digests, np.arange(40))
    assert index.find(digests).tolist() == list(range(40))
    for gone in (39, 17, 16, 0):
        index.remove(np.array([gone]))
        assert index.find(digests).tolist() == list(range(gone))
    assert index.find(digests[:0]).tolist() == []


@pytest.mark.parametrize("word", range(4))
def test_digests_that_differ_in_one_word_never_share(word: int) -> None:
    """Equal in the place where the table looks: only the whole digest tells them apart."""
    index, digests = PrefixIndex(8), np.repeat(random_digests(1), 2, axis=0)
    digests[1, word] ^= np.uint64(1 << 63)  # beyond the 31 bits of a tag
    index.insert(digests[:1], np.array([5]))
    assert index.find(digests[1:]).tolist() == []
    assert index.insert(digests[1:], np.array([6])).tolist() == [6]
    assert index.find(digests).tolist() == [5, 6]
    index.remove(np.array([5]))
    assert index.find(digests[1:]).tolist() == [6]


def test_the_first_holder_of_a_digest_stays() -> None:
    index, digests = PrefixIndex(8), random_digests(2)
    assert index.insert(digests, np.array([1, 2])).tolist() == [1, 2]
    assert index.insert(digests[::-1].copy(), np.array([3, 4])).tolist() == [2, 1]
    assert index.num_cached == 2


def test_equal_digests_in_one_call_get_one_holder() -> None:
    index, digests = PrefixIndex(8), np.repeat(random_digests(1), 3, axis=0)
    assert index.insert(digests, np.array([3, 1, 2])).tolist() == [3, 3, 3]


def test_a_block_that_is_not_there_cannot_be_removed() -> None:
    index = PrefixIndex(8)
    with pytest.raises(AssertionError, match="1 of 1 blocks"):
        index.remove(np.array([3]))


def test_searches_stay_short_after_any_number_of_removals() -> None:
    """No tombstones: a full table that was emptied and filled many times is as good as new."""
    size = 500
    index, rng = PrefixIndex(size), np.random.default_rng(7)
    for turn in range(60):
        digests = random_digests(size, seed=turn)
        index.insert(digests, rng.permutation(size))
        assert len(index.find(digests)) == size
        index.remove(rng.permutation(size))
        assert (index._table_T == -1).all()


def test_bytes_per_block() -> None:
    assert PrefixIndex(100_000).nbytes / 100_000 < 49
