"""Which block holds the keys of which tokens: found by the digest of all tokens up to the block's end.

N blocks of the pool · n blocks of a call. 48 bytes a block: its digest, and two slots of the table.
"""

from __future__ import annotations

import numpy as np

from deepinfer.cache import hash_table
from deepinfer.cache.token_chain import DIGEST_WORDS

SLOTS_PER_BLOCK = 2


class PrefixIndex:
    """Digests of cached blocks. Knows nothing of who owns a block or when it was used."""

    def __init__(self, num_blocks: int, *, tag_bits: int = hash_table.TAG_BITS) -> None:
        """`tag_bits` below 31 makes the table's own hash weak, for tests: nothing but speed may change."""
        assert 0 < num_blocks < 2**31 and 0 <= tag_bits <= hash_table.TAG_BITS
        self._names_N4 = np.zeros((num_blocks, DIGEST_WORDS), dtype=np.uint64)
        self._table_T = np.full(SLOTS_PER_BLOCK * num_blocks + 1, hash_table.EMPTY, dtype=np.int64)
        self._tag_mask = (1 << tag_bits) - 1
        self.num_cached = 0

    @property
    def nbytes(self) -> int:
        return self._names_N4.nbytes + self._table_T.nbytes

    def find(self, digests_n4: np.ndarray) -> np.ndarray:
        """Blocks of the first digests, up to the first one that is not cached: int64."""
        found_n = np.empty(len(digests_n4), dtype=np.int64)
        count = hash_table.find_run(self._table_T, self._names_N4, digests_n4, self._tag_mask, found_n)
        return found_n[:count]

    def insert(self, digests_n4: np.ndarray, blocks_n: np.ndarray) -> np.ndarray:
        """Enter blocks under their digests. Returns the holder of each, int64 [n]: the block itself, or the one that was there
        first and stays."""
        assert len(digests_n4) == len(blocks_n)
        holders_n = np.empty(len(blocks_n), dtype=np.int64)
        self.num_cached += hash_table.insert_each(
            self._table_T, self._names_N4, digests_n4, blocks_n, self._tag_mask, holders_n
        )
        assert self.num_cached <= len(self._names_N4), "a block is in the index under two digests"
        return holders_n

    def remove(self, blocks_n: np.ndarray) -> None:
        """Take out blocks, all of them cached."""
        absent = hash_table.remove_each(self._table_T, self._names_N4, blocks_n, self._tag_mask)
        assert not absent, f"{absent} of {len(blocks_n)} blocks were not in the index"
        self.num_cached -= len(blocks_n)
