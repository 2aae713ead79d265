"""Cost of the prefix cache on the host, in µs per block of 128 tokens, from 10⁴ to 10⁷ blocks.

    python benchmarks/prefix_cache.py [--sizes 10000 …] [--blocks 32 256] [--record]

`hash_us`: digests of new tokens. `lookup_us` and `insert_us`: the index alone, digests at hand, in runs of `blocks` blocks
that lie anywhere in it. `policy_us`: a prompt through the whole cache (match, owners, block allocation, entering, release,
eviction of what it needs from a full pool, half of it a hit), hashing and all Python left in, divided by its blocks.
`dict_lookup_us`, `dict_insert_us`: the peer, a Python dict from digest bytes to block, in the same run and order. `dram_ns`:
one random read of 8 bytes from as much memory as the index takes, each address known from the one before. A lookup reads two
such places, so that is the physical limit of one that waits; the index waits for many at a time.
"""

import gc
import time
from pathlib import Path

import numba
import numpy as np
from record import options, record

from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.prefix_index import PrefixIndex
from deepinfer.cache.replay import Replay
from deepinfer.cache.token_chain import TokenChain, chain_root

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
RUNS = (32, 256)  # blocks of a prompt
BLOCK_TOKENS = 128
VOCABULARY = 129_280
MOST_QUERIES = 4_000
REPEATS = 3


def best_of(measure, count: int) -> float:
    """µs per unit: the fastest of a few repetitions."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        measure()
        times.append(time.perf_counter() - started)
    return min(times) / count * 1e6


def hash_us(blocks: int) -> float:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, blocks * BLOCK_TOKENS)
    root = chain_root("numerics", "salt")
    return best_of(lambda: TokenChain(root, BLOCK_TOKENS).extend(tokens), blocks)


def filled(size: int) -> tuple[PrefixIndex, np.ndarray, np.ndarray]:
    """A full index, its digests in the order of prompts, and their blocks, scattered as after much churn."""
    rng = np.random.default_rng(1)
    digests, blocks = rng.integers(0, 2**64, (size, 4), dtype=np.uint64), rng.permutation(size)
    index = PrefixIndex(size)
    for start in range(0, size, 1024):
        index.insert(digests[start : start + 1024], blocks[start : start + 1024])
    return index, digests, blocks


def index_us(index: PrefixIndex, digests: np.ndarray, blocks: np.ndarray, run: int) -> tuple[float, float]:
    """Lookup and insertion, in random places of a full index; what is inserted was removed first, off the clock."""
    starts = np.random.default_rng(2).permutation(len(blocks) // run)[:MOST_QUERIES] * run
    queries = [digests[start : start + run].copy() for start in starts]
    lookup = best_of(lambda: [index.find(query) for query in queries], len(starts) * run)
    times = []
    for _ in range(REPEATS):
        for start in starts:
            index.remove(blocks[start : start + run])
        started = time.perf_counter()
        for query, start in zip(queries, starts):
            index.insert(query, blocks[start : start + run])
        times.append(time.perf_counter() - started)
    return lookup, min(times) / (len(starts) * run) * 1e6


def dict_us(digests: np.ndarray, blocks: np.ndarray, run: int) -> tuple[float, float]:
    """The same with a dict; keys are cut out beforehand, as a cache that hashes would have them."""
    keys, numbers = [row.tobytes() for row in digests], blocks.tolist()
    table = dict(zip(keys, numbers))
    starts = (np.random.default_rng(2).permutation(len(blocks) // run)[:MOST_QUERIES] * run).tolist()
    queries = [[bytes(bytearray(key)) for key in keys[start : start + run]] for start in starts]
    lookup = best_of(lambda: [[table.get(key) for key in query] for query in queries], len(starts) * run)
    for query in queries:
        for key in query:
            del table[key]
    started = time.perf_counter()
    for query, start in zip(queries, starts):
        for offset, key in enumerate(query):
            table[key] = numbers[start + offset]
    return lookup, (time.perf_counter() - started) / (len(starts) * run) * 1e6


def policy_us(size: int, run: int) -> tuple[float, float]:
    """Whole prompts through a full cache, half of each a hit; and bytes a block of index, pool and snapshot table."""
    replay = Replay(keep_tokens=0, on_hit="exact", sliding_window=128, num_layers=1, boundary=1)
    cache = PrefixCache(
        num_blocks=size,
        num_snapshots=0,
        block_tokens=BLOCK_TOKENS,
        snapshot_every=64,
        replay=replay,
        numerics_digest="numerics",
    )
    rng = np.random.default_rng(3)
    fill(cache, rng)
    half = run // 2 * BLOCK_TOKENS
    known = [rng.integers(0, VOCABULARY, half) for _ in range(min(500, size // run // 4))]
    for number, beginning in enumerate(known):
        play(cache, number, beginning)
    prompts = [np.concatenate([beginning, rng.integers(0, VOCABULARY, half + 1)]) for beginning in known]
    evicted, started = cache.blocks.num_evicted, time.perf_counter()
    for number, prompt in enumerate(prompts):
        play(cache, number, prompt)
    elapsed_s = time.perf_counter() - started
    assert cache.blocks.num_evicted - evicted >= len(prompts) * run // 2, "the pool was not full"
    assert cache.counts.hits >= len(prompts), "half of every prompt was to be found"
    nbytes = cache.index.nbytes + cache.blocks.nbytes + cache.snapshots.nbytes
    return elapsed_s / len(prompts) / run * 1e6, nbytes / size


def fill(cache: PrefixCache, rng: np.random.Generator) -> None:
    """Every block cached and idle, in scattered order of use."""
    ids = rng.permutation(cache.blocks.allocate(cache.blocks.num_free))
    digests = rng.integers(0, 2**64, (len(ids), 4), dtype=np.uint64)
    for start in range(0, len(ids), 1024):
        cache.index.insert(digests[start : start + 1024], ids[start : start + 1024])
    cache.blocks.mark_cached(ids)
    cache.blocks.release(ids)


def play(cache: PrefixCache, number: int, prompt: np.ndarray) -> None:
    hit = cache.match(number, prompt, "", num_prompt=len(prompt))
    cache.enter(number, prompt, "", hit)
    fresh = cache.blocks.allocate(-(-len(prompt) // BLOCK_TOKENS) - len(hit.blocks))
    blocks = np.concatenate([hit.blocks, fresh])
    cache.advance(number, prompt, len(prompt), blocks)
    cache.blocks.release(blocks)
    cache.leave(number)


@numba.njit
def chase(next_place: np.ndarray, steps: int) -> int:
    place = 0
    for _ in range(steps):
        place = next_place[place]
    return place


def dram_ns(nbytes: int) -> float:
    """One dependent read somewhere in `nbytes`."""
    count = nbytes // 8
    order = np.random.default_rng(4).permutation(count)
    next_place = np.empty(count, dtype=np.int64)
    next_place[order] = np.roll(order, -1)
    chase(next_place, 10)
    steps = 200_000
    return best_of(lambda: chase(next_place, steps), steps) * 1e3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--blocks", type=int, nargs="+", default=RUNS)
    arguments = parser.parse_args()
    policy_us(4096, 32)  # compiles
    hashing = hash_us(2048)
    for size in arguments.sizes:
        gc.collect()
        index, digests, blocks = filled(size)
        floor_ns = dram_ns(index.nbytes)
        for run in arguments.blocks:
            lookup, insert = index_us(index, digests, blocks, run)
            dict_lookup, dict_insert = dict_us(digests, blocks, run)
            policy, bytes_per_block = policy_us(size, run)
            record(
                Path(__file__).stem,
                num_blocks=size,
                blocks=run,
                lookup_us=round(lookup, 4),
                insert_us=round(insert, 4),
                sum_us=round(lookup + insert, 4),
                dict_lookup_us=round(dict_lookup, 4),
                dict_insert_us=round(dict_insert, 4),
                policy_us=round(policy, 3),
                hash_us=round(hashing, 3),
                dram_ns=round(floor_ns, 1),
                bytes_per_block=round(bytes_per_block, 1),
            )


if __name__ == "__main__":
    main()
