"""The compiled loops of the prefix cache, loaded or compiled before the first request needs them."""

import numpy as np

from deepinfer.cache.cached_blocks import CachedBlocks
from deepinfer.cache.prefix_index import PrefixIndex


def warm_up() -> None:
    """Every loop once, on two blocks: two seconds on a machine that runs it for the first time."""
    index, digests = PrefixIndex(2), np.arange(8, dtype=np.uint64).reshape(2, 4)
    pool = CachedBlocks(2, on_evicted=index.remove)
    ids = pool.allocate(2)
    pool.mark_cached(index.insert(digests, ids))
    pool.release(ids)
    pool.share(index.find(digests))
    pool.release(ids)
    pool.allocate(1)
    index.remove(ids[:1])
    pool.unmark(ids[:1])
