"""Digests of a sequence's full blocks: each covers all tokens up to the end of its block, and whose they are.

n blocks. A digest is 256 bits as four uint64 (BLAKE2b), long enough that equal digests may be taken for equal tokens even where
somebody looks for a collision on purpose.
"""

from __future__ import annotations

import hashlib

import numpy as np

DIGEST_BYTES = 32
DIGEST_WORDS = 4
_NONE = np.zeros((0, DIGEST_WORDS), dtype=np.uint64)


def chain_root(numerics_digest: str, salt: str) -> bytes:
    """What stands before the first block: caches of other numerics or of another tenant's salt never match."""
    parts = [text.encode("utf-8", "surrogatepass") for text in (numerics_digest, salt)]
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.blake2b(framed, digest_size=DIGEST_BYTES, person=b"deepinfer.prefix").digest()


def approximate(digests_n4: np.ndarray) -> np.ndarray:
    """The names of the same tokens where what is cached of them is approximate: as unlike as another seed would make them."""
    return digests_n4 ^ _APPROXIMATE


_APPROXIMATE = np.frombuffer(hashlib.blake2b(b"approximate", digest_size=DIGEST_BYTES).digest(), dtype="<u8")


class TokenChain:
    """The digests of one sequence, grown block by block."""

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._newest = root
        self._digests_n4 = _NONE
        self._num_blocks = 0

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def digests(self) -> np.ndarray:
        """uint64 [n, 4]."""
        return self._digests_n4[: self._num_blocks]

    def extend(self, tokens: np.ndarray) -> None:
        """`tokens` is the sequence from position 0 on, the hashed part included; its full blocks are hashed."""
        first, end = self._num_blocks, len(tokens) // self.block_tokens
        if end <= first:
            return
        size = self.block_tokens * 4
        data = tokens[first * self.block_tokens : end * self.block_tokens].astype("<i4").tobytes()
        newest, found = self._newest, []
        for start in range(0, len(data), size):
            newest = hashlib.blake2b(newest + data[start : start + size], digest_size=DIGEST_BYTES).digest()
            found.append(newest)
        if end > len(self._digests_n4):
            grown = np.empty((max(end, 2 * len(self._digests_n4)), DIGEST_WORDS), dtype=np.uint64)
            grown[:first] = self.digests
            self._digests_n4 = grown
        self._digests_n4[first:end] = np.frombuffer(b"".join(found), dtype="<u8").reshape(-1, DIGEST_WORDS)
        self._newest, self._num_blocks = newest, end
