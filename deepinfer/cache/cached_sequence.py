"""What the prefix cache knows of one sequence, and what it found for it.

n blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from deepinfer.cache.replay import Floors
from deepinfer.cache.token_chain import TokenChain, approximate


@dataclass(slots=True)
class Hit:
    """What the cache has of a sequence. Nothing is taken before `PrefixCache.enter`."""

    blocks: np.ndarray  # int64 [n]; to be shared, from the first block on
    floors: Floors  # where the sequence begins to compute
    snapshot: int | None  # to be restored before its first row
    num_matched: int  # blocks that are cached; more than n where the window keys of the last ones are not to be had
    limit: int  # tokens that could have been used at most

    @property
    def num_tokens(self) -> int:
        """Tokens whose blocks are shared; of them `floors.start` are not computed again."""
        return self.floors.write_from


@dataclass(slots=True)
class CachedSequence:
    """A sequence from its first look into the cache to its end."""

    chain: TokenChain
    cached_tokens: int = 0  # of its prompt, not computed
    approximate: bool = False  # what it computes from now on follows from rebuilt windows
    num_entered: int = 0  # blocks that are shared, or have been offered to the index
    own_blocks: list[int] = field(default_factory=list)  # of them those that the index took
    due: list[int] = field(default_factory=list)  # boundaries of its known tokens that shall have a snapshot, rising
    newest: tuple[int, int] | None = None  # snapshot and block of the last boundary that its answer crossed

    def names(self, first: int, end: int) -> np.ndarray:
        """Under which digests its blocks `first` … `end` - 1 are cached, uint64 [n, 4]."""
        digests_n4 = self.chain.digests[first:end]
        return approximate(digests_n4) if self.approximate else digests_n4

    def start(self, hit: Hit, num_tokens: int, snapshot_every: int) -> None:
        """It begins with what was found; `snapshot_every` 0: it takes no snapshots.

        They will serve a longer prompt (at the end of the known tokens), the same prompt (at its last usable boundary), and
        others: every so many blocks, and where the snapshots of an earlier prompt fell short of what is shared.
        """
        self.num_entered, self.own_blocks, self.newest, self.due = len(hit.blocks), [], None, []
        self.approximate |= hit.floors.approximate
        if snapshot_every:
            size = self.chain.block_tokens
            last = num_tokens // size
            wanted = {last, min(last, hit.limit // size), hit.num_matched, *range(0, last + 1, snapshot_every)}
            self.due = sorted(block * size for block in wanted if block > len(hit.blocks))
