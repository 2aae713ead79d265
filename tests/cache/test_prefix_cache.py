"""The policy alone: sequences are played by hand, one chunk at a time."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from deepinfer.cache.cached_sequence import Hit
from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.replay import OnHit, Replay

SIZE = 128
WINDOW = 128


def make_cache(
    *,
    blocks: int = 64,
    snapshots: int = 8,
    every: int = 1000,
    on_hit: OnHit = "snapshot",
    keep: int = 0,
    layers: int = 2,
) -> PrefixCache:
    return PrefixCache(
        num_blocks=blocks,
        num_snapshots=snapshots,
        block_tokens=SIZE,
        snapshot_every=every,
        replay=Replay(keep_tokens=keep, on_hit=on_hit, sliding_window=WINDOW, num_layers=layers, boundary=1),
        numerics_digest="numerics",
    )


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, length)


@dataclass
class Player:
    """Runs sequences through a cache as a scheduler would."""

    cache: PrefixCache
    blocks: dict[int, np.ndarray] = field(default_factory=dict)
    hits: dict[int, Hit] = field(default_factory=dict)
    boundaries: list[int] = field(default_factory=list)
    count: int = 0

    def start(self, tokens: np.ndarray, *, salt: str = "", usable: bool = True, request: int | None = None) -> int:
        resumed = request is not None
        request = self.count if request is None else request
        self.count += not resumed
        hit = self.cache.match(request, tokens, salt, num_prompt=len(tokens), usable=usable)
        self.cache.enter(request, tokens, salt, hit, resumed=resumed)
        fresh = self.cache.blocks.allocate(-(-len(tokens) // SIZE) - len(hit.blocks))
        self.blocks[request], self.hits[request] = np.concatenate([hit.blocks, fresh]), hit
        return request

    def compute(self, request: int, tokens: np.ndarray, first: int, end: int) -> None:
        reserved = self.cache.reserve(request, first, end)
        self.cache.advance(request, tokens, end, self.blocks[request])
        for boundary, snapshot in reserved:
            self.boundaries.append(boundary)
            self.cache.settle(request, boundary, snapshot, decoding=False)
        if self.hits[request].snapshot is not None and first == self.hits[request].floors.start:
            self.cache.unpin(np.array([self.hits[request].snapshot]))

    def stop(self, request: int) -> None:
        self.cache.blocks.release(self.blocks.pop(request))
        self.cache.leave(request)

    def run(self, tokens: np.ndarray, **options: object) -> Hit:
        """A whole sequence; what it got."""
        request = self.start(tokens, **options)
        self.compute(request, tokens, self.hits[request].floors.start, len(tokens))
        self.stop(request)
        return self.hits[request]


@pytest.mark.parametrize(
    "shared, hit", [(63, 0), (64, 0), (127, 0), (128, 128), (129, 128), (255, 128), (256, 256), (257, 256), (700, 640)]
)
def test_whole_blocks_are_shared_and_their_keys_named(shared: int, hit: int) -> None:
    player = Player(make_cache(every=1))
    first, second = prompt(700), prompt(700, seed=1)
    second[:shared] = first[:shared]
    player.run(first)
    got = player.run(second)
    assert (got.num_tokens, got.floors.start, got.floors.window_from) == (hit, hit, 0)
    assert len(got.blocks) == hit // SIZE and (got.snapshot is None) == (hit == 0)


@pytest.mark.parametrize("length, hit", [(1, 0), (128, 0), (129, 128), (256, 128), (257, 256), (640, 512)])
def test_a_prompt_that_is_cached_whole_computes_its_last_token(length: int, hit: int) -> None:
    player, tokens = Player(make_cache()), prompt(length)
    player.run(tokens)
    assert player.run(tokens).num_tokens == hit < length


def test_other_salts_share_nothing() -> None:
    player, tokens = Player(make_cache()), prompt(400)
    player.run(tokens, salt="a")
    assert player.run(tokens, salt="b").num_matched == 0
    assert player.run(tokens, salt="a").num_tokens == 384


def test_a_sequence_whose_rows_are_asked_for_gets_no_hit_and_gives_some() -> None:
    player, tokens = Player(make_cache()), prompt(400)
    player.run(tokens, usable=False)
    assert player.run(tokens, usable=False).num_tokens == 0
    assert player.run(tokens).num_tokens == 384


def test_snapshots_stand_where_they_will_serve() -> None:
    player = Player(make_cache(snapshots=100, every=4))
    player.run(prompt(10 * SIZE))
    assert player.boundaries == [
        4 * SIZE,
        8 * SIZE,
        9 * SIZE,
        10 * SIZE,
    ]  # 9: for the same prompt, which computes its last
    player.boundaries.clear()
    branch = prompt(10 * SIZE + 5, seed=1)
    branch[: 6 * SIZE] = prompt(10 * SIZE)[: 6 * SIZE]
    got = player.run(branch)
    assert (got.num_tokens, got.num_matched) == (4 * SIZE, 6)
    assert player.boundaries == [6 * SIZE, 8 * SIZE, 10 * SIZE]
    branch[7 * SIZE :] += 1
    assert player.run(branch).num_tokens == 6 * SIZE


def test_without_a_snapshot_there_is_no_hit() -> None:
    player, tokens = Player(make_cache(snapshots=0)), prompt(400)
    player.run(tokens)
    got = player.run(tokens)
    assert (got.num_tokens, got.num_matched) == (0, 3)


def test_few_snapshots_serve_the_newest() -> None:
    player = Player(make_cache(snapshots=2))
    for seed in range(4):
        player.run(prompt(200, seed))
    assert [player.run(prompt(200, seed)).num_tokens for seed in (3, 2)] == [128, 128]
    assert player.cache.snapshots.num_kept == 2 and player.cache.snapshots.num_evicted == 2


def test_an_answer_leaves_its_newest_boundary_for_the_next_turn() -> None:
    cache = make_cache(snapshots=2)
    player, tokens = Player(cache), prompt(600)
    request = player.start(tokens[:200])
    player.compute(request, tokens, 0, 200)
    for boundary in (256, 384, 512):
        player.blocks[request] = np.concatenate([player.blocks[request], cache.blocks.allocate(1)])
        snapshot = cache.reserve_decoding(request, boundary)
        assert snapshot is not None
        cache.advance(request, tokens, boundary, player.blocks[request])
        cache.settle(request, boundary, snapshot, decoding=True)
    player.stop(request)
    assert player.run(tokens).num_tokens == 512
    assert player.run(tokens[:250]).num_tokens == 128  # of the prompt: only boundaries of the answer gave way


def test_a_boundary_that_was_not_reached_leaves_nothing() -> None:
    cache = make_cache(snapshots=1)
    player, tokens = Player(cache), prompt(300)
    request = player.start(tokens[:100])
    player.compute(request, tokens, 0, 100)
    for _ in range(3):
        snapshot = cache.reserve_decoding(request, 128)
        assert snapshot is not None  # the only one, so it came back each time
        cache.settle(None, 128, snapshot, decoding=True)
    assert cache.snapshots.num_kept == 0


def test_two_that_compute_the_same_keep_one_of_each() -> None:
    cache = make_cache()
    player, tokens = Player(cache), prompt(400)
    one, two = player.start(tokens), player.start(tokens)
    player.compute(one, tokens, 0, 400)
    player.compute(two, tokens, 0, 400)
    assert cache.counts.duplicate_blocks == 3 and cache.index.num_cached == 3 and cache.snapshots.num_kept == 1
    player.stop(one)
    player.stop(two)
    assert cache.blocks.num_idle == 3 and player.run(tokens).num_tokens == 384


def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    player, tokens = Player(make_cache(blocks=4)), prompt(500)
    request = player.start(tokens)
    player.compute(request, tokens, 0, 500)
    player.cache.blocks.release(player.blocks.pop(request))
    assert player.cache.blocks.num_free == 4
    player.start(tokens, request=request)
    assert player.hits[request].num_tokens == 384 and player.cache.counts.queries == 1


def test_eviction_ends_the_sharing_of_what_was_evicted() -> None:
    evicted: list[int] = []
    cache = make_cache(blocks=6, every=1)
    cache.on_evicted = lambda blocks: evicted.extend(blocks.tolist())
    player, tokens = Player(cache), prompt(400)
    player.run(tokens)
    player.run(prompt(600, seed=1))
    assert len(evicted) == 2 and cache.index.num_cached == 5
    assert player.run(tokens).num_tokens == 128  # its end went first


def test_a_failed_sequence_leaves_nothing() -> None:
    cache = make_cache()
    player, tokens = Player(cache), prompt(400)
    request = player.start(tokens)
    player.compute(request, tokens, 0, 400)
    cache.forget(request)
    player.stop(request)
    assert player.run(tokens).num_matched == 0 and cache.blocks.num_free == 64


@pytest.mark.parametrize("length, start", [(129, 0), (385, 130), (1000, 896 - 254)])
def test_exact_computes_a_window_a_layer_again(length: int, start: int) -> None:
    player, tokens = Player(make_cache(on_hit="exact")), prompt(length)
    player.run(tokens)
    got = player.run(tokens)
    floors = got.floors
    assert (floors.start, floors.window_from, floors.write_from) == (start, start, (length - 1) // SIZE * SIZE)
    assert not floors.approximate and len(got.blocks) == (length - 1) // SIZE


def test_bounded_computes_a_window_again_and_says_that_it_is_not_exact() -> None:
    cache = make_cache(on_hit="bounded", blocks=64)
    player, tokens = Player(cache), prompt(1000)
    player.run(tokens[:600])
    request = player.start(tokens)
    floors = player.hits[request].floors
    assert (floors.start, floors.write_from, floors.approximate) == (384, 512, True)
    player.compute(request, tokens, 384, 1000)
    assert cache.use_of(request).approximate
    exact = make_cache(on_hit="exact")  # what only exact hits may see: the blocks before the approximation
    exact.index, exact.blocks = cache.index, cache.blocks
    assert exact.match(99, tokens, "", num_prompt=1000).num_tokens == 512
    player.stop(request)
    assert player.run(tokens).num_tokens == 896


def test_bounded_replay_of_prompts_leaves_its_kept_rows_to_compute() -> None:
    player, tokens = Player(make_cache(keep=140)), prompt(1000)
    player.run(tokens)
    got = player.run(tokens)
    assert got.num_tokens == 768 and got.floors.upper_from == 860
    longer = np.concatenate([tokens, prompt(300, seed=1)])
    assert player.run(longer).num_tokens == 896  # the end of the first prompt


def test_what_was_looked_up_and_not_entered_takes_nothing() -> None:
    player, tokens = Player(make_cache()), prompt(400)
    player.run(tokens)
    before = player.cache.blocks.num_free
    for _ in range(3):
        player.cache.match(77, tokens, "", num_prompt=400)
    assert player.cache.blocks.num_free == before and player.cache.counts.queries == 1
