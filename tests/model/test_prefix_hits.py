"""Rows after a prefix hit whose window keys are rebuilt: what is computed again writes to no block and, if enough, is exact."""

import pytest
import torch
from small_models import Engine, differing, golden_model, random_tokens

from deepinfer.cache.replay import Replay
from deepinfer.ops import native, reference

SETTINGS = [
    (native, "full", "float32"),
    pytest.param((reference, "none", "float64"), marks=pytest.mark.slow),
]
LENGTH, HIT = 300, 256
BOUNDARY, LAYERS, WINDOW = 6, 10, 16


@pytest.fixture(scope="module", params=SETTINGS, ids=["native-full-float32", "reference-none-float64"])
def engine(request: pytest.FixtureRequest) -> Engine:
    ops, numerics, dtype = request.param
    return golden_model().engine(ops(), numerics, dtype, backtrack=6)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return random_tokens(golden_model().config, LENGTH, 51)


def share(engine: Engine, slot: int) -> torch.Tensor:
    """Blocks of slot 0's first HIT tokens under the table of `slot`, everything else of it NaN."""
    count = HIT // engine.model.layout.block_tokens
    source, mine = (torch.tensor(engine.table(s)) for s in (0, slot))
    engine.cache.fill_nan_slots([slot])
    engine.cache.blocks[mine] = 0xFF
    engine.cache.blocks[mine[:count]] = engine.cache.blocks[source[:count]]
    return mine[:count]


def after_hit(engine: Engine, tokens: list[int], replay: Replay, cuts: list[int], slot: int = 1) -> torch.Tensor:
    """Rows from the end of the hit on; the shared blocks are as before."""
    blocks = share(engine, slot)
    before = engine.cache.blocks[blocks].clone()
    at = replay.floors(len(tokens), HIT)
    fields = {"window_from": at.window_from, "upper_from": at.upper_from, "write_from": at.write_from}
    rows = engine.run(tokens, [cut for cut in cuts if cut > at.start], slot=slot, start=at.start, **fields)
    assert torch.equal(engine.cache.blocks[blocks], before)
    return rows[HIT - at.start :]


@pytest.mark.parametrize("cuts", [[], [HIT], [HIT - 20, HIT + 3], [110, 111, 200, 299]])
def test_exact_replay_gives_the_bits_of_a_cold_run(engine: Engine, tokens: list[int], cuts: list[int]) -> None:
    cold = engine.run(tokens, [])
    replay = Replay(keep_tokens=0, on_hit="exact", sliding_window=WINDOW, num_layers=LAYERS, boundary=BOUNDARY)
    assert replay.replayed(HIT) == (WINDOW - 1) * LAYERS < HIT
    assert torch.equal(after_hit(engine, tokens, replay, cuts), cold[HIT:])
    assert differing(engine.visible(0, LENGTH), engine.visible(1, LENGTH)) == []


def test_under_bounded_replay_fewer_tokens_are_enough_to_be_exact(engine: Engine, tokens: list[int]) -> None:
    compact = golden_model().engine(
        engine.model.ops, engine.model.numerics, engine.model.layout.dtype, backtrack=6, compact=True
    )
    replay = Replay(keep_tokens=22, on_hit="exact", sliding_window=WINDOW, num_layers=LAYERS, boundary=BOUNDARY)
    assert replay.replayed(HIT) == (WINDOW - 1) * BOUNDARY
    upper = replay.upper_from(LENGTH)
    for model in (engine, compact):
        cold = model.run(tokens, [], upper_from=upper)
        assert torch.equal(after_hit(model, tokens, replay, [HIT + 1])[upper - HIT :], cold[upper:])


def test_bounded_hits_differ_a_little_and_the_same_at_any_chunking(engine: Engine, tokens: list[int]) -> None:
    cold = engine.run(tokens, [])
    replay = Replay(keep_tokens=0, on_hit="bounded", sliding_window=WINDOW, num_layers=LAYERS, boundary=BOUNDARY)
    assert replay.floors(LENGTH, HIT).approximate
    rows = after_hit(engine, tokens, replay, [])
    assert torch.isfinite(rows).all() and not torch.equal(rows, cold[HIT:])
    for cuts in ([HIT], [HIT - 3, HIT + 1, 270], list(range(HIT - 2, HIT + 9))):
        assert torch.equal(after_hit(engine, tokens, replay, cuts), rows)


def test_a_floor_in_every_layer_is_the_oracles() -> None:
    """Cached entries are exact and no key before the hit is there: the one-shot forward with a floor in all layers."""
    engine = golden_model().engine(reference(), "full", "float64", backtrack=6)
    tokens = random_tokens(golden_model().config, LENGTH, 52)
    engine.run(tokens, [])
    share(engine, 1)
    hidden = engine.run(tokens, [270], slot=1, start=HIT, window_from=HIT, write_from=HIT)
    dense = golden_model().dense("full", "float64")
    wanted = dense(torch.tensor(tokens), window_floor=HIT, floor_layer=0).logits_TV[HIT:]
    assert (engine.model.logits(hidden) - wanted).abs().max() <= 2e-6


def test_a_floor_inside_a_pair_of_tokens_is_refused(engine: Engine, tokens: list[int]) -> None:
    with pytest.raises(AssertionError, match="both of its tokens"):
        engine.run(tokens[:10], [], slot=2, write_from=5)
