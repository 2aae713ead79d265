"""However a sequence is cut into steps, and whatever else is in them, its rows have the same bits."""

from collections.abc import Callable

import pytest
import torch
from small_models import Engine, golden_model, golden_prompts, k6_model, random_tokens

from deepinfer.ops import Ops, native, reference

SETTINGS = [(native, "full", "float32"), (native, "none", "float32"), (reference, "kv", "float64")]
LONG = 700  # K6: beyond the window (128), index_topk (128 entries) and the candidates (64 blocks of 8)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda s: f"{s[0].__name__}-{s[1]}-{s[2]}")
def tiny(request: pytest.FixtureRequest) -> Engine:
    ops, numerics, dtype = request.param
    return golden_model().engine(ops(), numerics, dtype)


@pytest.fixture(scope="module")
def tiny_rows(tiny: Engine) -> torch.Tensor:
    tokens = golden_prompts()[5]
    assert len(tokens) > 64
    return tiny.run(tokens, [])


@pytest.mark.sample(1)
def test_token_by_token_equals_one_shot(tiny: Engine, tiny_rows: torch.Tensor) -> None:
    tokens = golden_prompts()[5]
    assert torch.equal(tiny.run(tokens, list(range(1, len(tokens)))), tiny_rows)


@pytest.mark.parametrize("cuts", [[1, 2, 19], [7, 8, 21, 51, 53, 90], [16, 32, 64], [17, 34, 149], [33]])
def test_ragged_chunks_equal_one_shot(tiny: Engine, tiny_rows: torch.Tensor, cuts: list[int]) -> None:
    assert torch.equal(tiny.run(golden_prompts()[5], cuts, slot=1), tiny_rows)


def test_a_sequence_alone_equals_itself_in_a_mixed_batch(tiny: Engine, tiny_rows: torch.Tensor) -> None:
    tokens, others = golden_prompts()[5], golden_prompts()
    tiny.step((others[4], 0, 60, 2), (others[3], 0, 5, 3))
    mixed = tiny.step((others[4], 60, 61, 2), (tokens, 0, 40, 4), (others[3], 5, 30, 3), (others[0], 0, 1, 5))
    assert torch.equal(mixed[1:41], tiny_rows[:40])
    mixed = tiny.step((tokens, 40, 41, 4), (others[4], 61, 90, 2), (others[0], 1, 2, 5))
    assert torch.equal(mixed[:1], tiny_rows[40:41])
    mixed = tiny.step((others[4], 90, 91, 2), (others[0], 2, 3, 5), (tokens, 41, 42, 4), (others[3], 30, 31, 3))
    assert torch.equal(mixed[2:3], tiny_rows[41:42])


def test_short_pieces_with_room_to_take_tokens_back_equal_one_shot(tiny_rows: torch.Tensor, tiny: Engine) -> None:
    """Verify rows: several new positions a step, some of them run again with other tokens."""
    model, tokens = tiny.model, golden_prompts()[5]
    engine = golden_model().engine(model.ops, model.numerics, model.layout.dtype, backtrack=6)
    engine.run(tokens[:80], [33])
    position = 80
    for accepted in (1, 4, 6, 2, 5, 3):
        guess = tokens[: position + accepted] + [9] * (6 - accepted)
        rows = engine.step((guess, position, position + 6, 0))
        assert torch.equal(rows[:accepted], tiny_rows[position : position + accepted])
        position += accepted


def test_stale_and_nan_content_of_a_reused_slot_is_never_seen(tiny: Engine, tiny_rows: torch.Tensor) -> None:
    tokens, other = golden_prompts()[5], golden_prompts()[4]
    tiny.run(other, [50], slot=6)
    assert torch.equal(tiny.run(tokens, [10, 11], slot=6), tiny_rows)
    tiny.forget()
    assert torch.equal(tiny.run(tokens, [10, 11], slot=6), tiny_rows)


@pytest.mark.sample(1)
def test_thread_count_one_and_two_give_the_same_bits_per_setting(tiny: Engine) -> None:
    before, tokens = torch.get_num_threads(), golden_prompts()[2]
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            whole = tiny.run(tokens, [])
            assert torch.equal(tiny.run(tokens, [20, 21, 22, 30]), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.sample(1)
@pytest.mark.parametrize("numerics", ["full", "none"])
def test_k6_pieces_equal_one_shot_where_everything_is_cut(numerics: str) -> None:
    engine = k6_model().engine(native(), numerics, "float32")
    tokens, other = random_tokens(engine.model.config, LONG, 1), random_tokens(engine.model.config, 300, 2)
    whole = engine.run(tokens, [])
    assert torch.isfinite(whole).all()
    ragged = engine.run(tokens, [1, 130, 131, 400, 685], slot=1)
    assert torch.equal(ragged, whole)
    engine.run(tokens[:690], [333], slot=2)
    for position in range(690, LONG):
        at = 8 * (position - 690)
        mixed = engine.step((other, at, at + 8, 3), (tokens, position, position + 1, 2))
        assert torch.equal(mixed[8:], whole[position : position + 1])


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["full", "kv", "none"])
def test_k6_token_by_token_equals_one_shot(numerics: str) -> None:
    engine = k6_model().engine(native(), numerics, "float32")
    tokens = random_tokens(engine.model.config, LONG, 3)
    assert torch.equal(engine.run(tokens, list(range(1, LONG)), slot=1), engine.run(tokens, []))


@pytest.mark.sample(1)
@pytest.mark.parametrize("numerics", ["full", "kv", "none"])
def test_native_and_reference_ops_give_the_same_bits(numerics: str) -> None:
    for model, tokens in (
        (golden_model(), golden_prompts()[5]),
        (k6_model(), random_tokens(k6_model().config, 600, 5)),
    ):
        rows = [
            model.engine(ops(), numerics, "float32").run(tokens, [100, len(tokens) - 2, len(tokens) - 1])
            for ops in (native, reference)
        ]
        assert torch.equal(*rows)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("ops", "numerics", "dtype", "tolerance"), [(native, "none", "float32", 1e-4), (reference, "full", "float64", 2e-6)]
)
def test_engine_equals_dense_on_k6(ops: Callable[[], Ops], numerics: str, dtype: str, tolerance: float) -> None:
    engine = k6_model().engine(ops(), numerics, dtype)
    tokens = random_tokens(engine.model.config, LONG, 4)
    dense = k6_model().dense(numerics, dtype)(torch.tensor(tokens)).logits_TV
    mine = engine.model.logits(engine.run(tokens, [300]))
    assert (dense - mine).abs().max() <= tolerance
