import numpy as np
import pytest

from deepinfer.cache.token_chain import TokenChain, approximate, chain_root

SIZE = 128


def digests(tokens: np.ndarray, *, root: bytes | None = None) -> list[bytes]:
    chain = TokenChain(chain_root("numerics", "") if root is None else root, SIZE)
    chain.extend(tokens)
    return [row.tobytes() for row in chain.digests]


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 129_280, 5 * SIZE + 17)


def test_only_full_blocks_have_a_digest(tokens: np.ndarray) -> None:
    assert [len(digests(tokens[:n])) for n in (0, 127, 128, 129, 255, 256, 657)] == [0, 0, 1, 1, 1, 2, 5]


def test_a_chain_that_grows_equals_one_made_at_once(tokens: np.ndarray) -> None:
    chain = TokenChain(chain_root("numerics", ""), SIZE)
    for end in (1, 128, 130, 400, 399, 657):
        chain.extend(tokens[:end])
    assert [row.tobytes() for row in chain.digests] == digests(tokens)


def test_a_digest_depends_on_every_token_before_its_end_and_on_no_later_one(tokens: np.ndarray) -> None:
    plain = digests(tokens)
    for place in (0, 127, 128, 300, 639):
        other = tokens.copy()
        other[place] += 1
        changed = [a != b for a, b in zip(plain, digests(other))]
        assert changed == [(block + 1) * SIZE > place for block in range(5)]


def test_numerics_and_salt_name_different_blocks(tokens: np.ndarray) -> None:
    roots = [
        chain_root(*seed) for seed in (("a", "b"), ("a", "c"), ("ab", ""), ("", "ab"), ("b", "a"), ("a", "\udc80"))
    ]
    assert len({digests(tokens, root=root)[0] for root in roots}) == len(roots)


def test_approximate_contents_have_other_names(tokens: np.ndarray) -> None:
    chain = TokenChain(chain_root("numerics", ""), SIZE)
    chain.extend(tokens)
    other = approximate(chain.digests)
    assert (other != chain.digests).all() and (approximate(other) == chain.digests).all()
