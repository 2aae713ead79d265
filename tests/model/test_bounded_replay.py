"""Bounded replay: as a mask it is the one-shot forward's floor; without the dropped rows it is the same, bit for bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import (
    Engine,
    differing,
    golden_arrays,
    golden_model,
    golden_prompts,
    k6_model,
    make_step,
    random_tokens,
)

from deepinfer.ops import Ops, native, reference

SETTINGS = [
    (native, "full", "float32"),
    pytest.param((reference, "full", "float32"), marks=pytest.mark.slow),
    pytest.param((reference, "kv", "float64"), marks=pytest.mark.slow),
]
BOUNDARY, WINDOW, KEEP = 6, 16, 22
PROMPT, ANSWER = 150, 24  # the answer is longer than a window
UPPER = PROMPT - KEEP
CUTS = [[], [17, 34, 140], [UPPER], [UPPER - 1, UPPER + 1], [30, UPPER - 7, UPPER + 9, 149], list(range(110, PROMPT))]


@pytest.fixture(
    scope="module", params=SETTINGS, ids=["native-full-float32", "reference-full-float32", "reference-kv-float64"]
)
def pair(request: pytest.FixtureRequest) -> tuple[Engine, Engine]:
    """The same model as a mask and without the dropped rows."""
    ops, numerics, dtype = request.param
    mask, compact = (
        golden_model().engine(ops(), numerics, dtype, backtrack=6, compact=compact) for compact in (False, True)
    )
    return mask, compact


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return random_tokens(golden_model().config, PROMPT + ANSWER, 21)


@pytest.fixture(scope="module")
def masked(pair: tuple[Engine, Engine], tokens: list[int]) -> torch.Tensor:
    """Rows of the prompt in one step, then of the answer, one by one, in slot 0 of the mask engine."""
    return pair[0].run(tokens, [*range(PROMPT, len(tokens))], upper_from=UPPER)


@pytest.mark.parametrize(
    ("ops", "numerics", "dtype", "tolerance"),
    [
        (reference, "full", "float64", 2e-6),
        pytest.param(reference, "kv", "float64", 2e-6, marks=pytest.mark.slow),
        (native, "none", "float32", 1e-4),
    ],
)
def test_logits_equal_the_oracle_with_a_floor(
    ops: Callable[[], Ops], numerics: str, dtype: str, tolerance: float, tokens: list[int]
) -> None:
    oracle = golden_model().dense(numerics, dtype)
    plain, dense = (oracle(torch.tensor(tokens), window_floor=floor).logits_TV[UPPER:] for floor in (0, UPPER))
    assert (plain - dense).abs().max() > 100 * tolerance, "the floor does something"
    for compact in (False, True):
        engine = golden_model().engine(ops(), numerics, dtype, compact=compact)
        hidden = engine.run(tokens, [40, UPPER + 5, *range(PROMPT, PROMPT + 18)], upper_from=UPPER)[UPPER:]
        assert (engine.model.logits(hidden) - dense).abs().max() <= tolerance


@pytest.mark.parametrize("number", [2, 5])
def test_greedy_tokens_equal_golden(number: int) -> None:
    gold, key = golden_arrays(), f"chk_f64/replay_boundary_first/{number}"
    engine = golden_model().engine(reference(), "full", "float64", backtrack=6, compact=True)
    ids, first = list(golden_prompts()[number]), 0
    floor = len(ids) - KEEP
    for token in gold[f"{key}/greedy"].tolist():
        logits = engine.model.logits(engine.run(ids, [], start=first, upper_from=floor)[-1:])[0]
        if not first:
            np.testing.assert_allclose(logits, gold[f"{key}/last_logits"], rtol=0, atol=2e-6)
        first = len(ids)
        ids.append(int(logits.argmax()))
        assert ids[-1] == token


@pytest.mark.parametrize("cuts", CUTS, ids=[f"{len(cuts)} cuts" for cuts in CUTS])
def test_any_chunking_of_mask_and_compact_gives_the_same_bits(
    pair: tuple[Engine, Engine], tokens: list[int], masked: torch.Tensor, cuts: list[int]
) -> None:
    for engine in pair:
        rows = engine.run(tokens[:PROMPT], cuts, slot=1, upper_from=UPPER)
        assert torch.equal(rows[UPPER:], masked[UPPER:PROMPT])
    assert not rows[:UPPER].any(), "dropped rows have no hidden states"
    seen = [engine.visible(1, PROMPT, window_from=UPPER) for engine in pair]
    assert differing(*seen) == []
    lower = [engine.visible(1, PROMPT, layers=BOUNDARY) for engine in pair]
    assert differing(*lower) == []


def test_what_is_dropped_is_neither_computed_nor_written(pair: tuple[Engine, Engine], tokens: list[int]) -> None:
    compact = pair[1]
    compact.forget()
    rows = compact.run(tokens[: UPPER - 1], [50], upper_from=UPPER)
    assert not rows.any()
    for layer, ring in enumerate(compact.cache.rings):
        written = ring[0].contiguous().view(torch.uint8) != 0xFF
        assert written.any().item() == (layer < BOUNDARY)


def test_entries_and_lower_rings_are_those_of_no_replay(pair: tuple[Engine, Engine], tokens: list[int]) -> None:
    for engine in pair:
        engine.run(tokens, [60, PROMPT], slot=2)
        engine.run(tokens, [90, UPPER + 3, PROMPT], slot=3, upper_from=UPPER)
        exact, replayed = (engine.visible(slot, len(tokens), layers=BOUNDARY) for slot in (2, 3))
        assert differing(exact, replayed) == []
        above = [engine.visible(slot, len(tokens)) for slot in (2, 3)]
        assert differing(*above), "the upper rings are approximate"


def test_decoding_and_recomputation_after_preemption_keep_the_floor(
    pair: tuple[Engine, Engine], tokens: list[int], masked: torch.Tensor
) -> None:
    for engine in pair:
        rows = engine.run(tokens, [100, *range(PROMPT, len(tokens))], slot=4, upper_from=UPPER)
        assert torch.equal(rows[UPPER:], masked[UPPER:])
        again = engine.run(tokens, [33, PROMPT + 9], slot=5, upper_from=UPPER)  # from 0, what was generated included
        assert torch.equal(again[UPPER:], masked[UPPER:])
        assert differing(engine.visible(4, len(tokens)), engine.visible(5, len(tokens))) == []


def test_mixed_batches_give_the_same_bits(pair: tuple[Engine, Engine], tokens: list[int], masked: torch.Tensor) -> None:
    """A decoding sequence, one that is dropped whole, one without a floor and the one that is looked at."""
    others = [random_tokens(golden_model().config, 60, seed) for seed in (1, 2, 3)]
    for engine in pair:
        engine.step((others[0], 0, 40, 1), (others[1], 0, 5, 2), upper_from=[10, 50])
        pieces = [(others[0], 40, 41, 1), (others[1], 5, 30, 2), (tokens, 0, UPPER + 2, 3), (others[2], 0, 8, 4)]
        first = engine.step(*pieces, upper_from=[10, 50, UPPER, 0])
        pieces = [(others[0], 41, 42, 1), (tokens, UPPER + 2, PROMPT, 3), (others[1], 30, 60, 2)]
        second = engine.step(*pieces, upper_from=[10, UPPER, 50])
        at = 1 + 25 + UPPER
        mine = torch.cat((first[at : at + 2], second[1 : 1 + PROMPT - UPPER - 2]))
        assert torch.equal(mine, masked[UPPER:PROMPT])
        alone = engine.run(others[0][:42], [40, 41], slot=5, upper_from=10)
        assert torch.equal(alone[40:], torch.cat((first[:1], second[:1])))


def test_features_of_kept_rows_are_the_same(pair: tuple[Engine, Engine], tokens: list[int]) -> None:
    step = make_step([(tokens, 0, PROMPT, 0, pair[0].table(0))])
    step = replace(step, upper_from=np.array([UPPER]), sample_rows=np.array([PROMPT - 1]))
    (_, mask), (_, compact) = (engine.model.forward_with_features(step, engine.cache) for engine in pair)
    assert torch.equal(mask[UPPER:], compact[UPPER:])
    assert mask[:UPPER].any() and not compact[:UPPER].any()


def test_a_floor_that_no_window_reaches_changes_nothing(pair: tuple[Engine, Engine], tokens: list[int]) -> None:
    for engine in pair:
        plain = engine.run(tokens[:60], [40], slot=6)
        assert torch.equal(engine.run(tokens[:60], [40], slot=7, upper_from=0), plain)


def test_k6_compact_equals_mask_past_every_cut() -> None:
    """Beyond the window (128), index_topk (128 entries) and the candidates (64 blocks of 8)."""
    tokens, upper = random_tokens(k6_model().config, 660, 8), 520
    mask, compact = (k6_model().engine(native(), "full", "float32", compact=compact) for compact in (False, True))
    whole = mask.run(tokens, [], upper_from=upper)[upper:]
    assert torch.equal(compact.run(tokens, [300, 530], upper_from=upper)[upper:], whole)
    assert differing(*(engine.visible(0, 660, window_from=upper) for engine in (mask, compact))) == []
