"""The model of fused operations is the engine's model: to the last byte in float64, within bounds in bfloat16."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fused_models import SNAPSHOTS, NoWaiting, Pair, golden, pair, row_by_row, trained, watched
from likely_tokens import Piece, choose_the_same_tokens
from small_models import Engine, make_step, random_tokens
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.storage import dequantise, scale_name
from deepinfer.model.checkpoint.weights import load_stored, load_weights, weight_specs
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import twins

LENGTH = 150  # golden: beyond the window (16), index_topk (16 entries) and the candidates (8 blocks of 4)
RELATIVE = 1e-12  # of float64 hidden states; nothing but the order of sums differs


@pytest.fixture
def exact() -> Iterator[Pair]:
    made = pair(golden, "float64")
    made.forget()
    yield made


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    config = golden().config
    return [random_tokens(config, LENGTH, seed) for seed in (41, 42, 43)]


def assert_same(rows: tuple[Tensor, Tensor], both: Pair) -> None:
    """Hidden rows agree, and every byte of the caches does: those that were written, and those that nobody touched."""
    plain, fused = rows
    assert (plain - fused).abs().max() <= RELATIVE * plain.abs().max()
    assert torch.equal(both.plain.cache.blocks, both.fused.cache.blocks)
    assert torch.equal(both.plain.cache.state, both.fused.cache.state)


@pytest.mark.parametrize(
    "cuts", [[40], pytest.param([1, 2, 3, 20, 21, 28, 61, 140, 149], marks=pytest.mark.slow)], ids=["halves", "ragged"]
)
def test_chunks_of_any_length_and_single_rows_equal(exact: Pair, texts: list[list[int]], cuts: list[int]) -> None:
    for first, end in zip([0, *cuts], [*cuts, LENGTH]):
        assert_same(exact.step((texts[0], first, end, 1)), exact)


def test_long_and_short_pieces_of_several_sequences_in_one_step_equal(exact: Pair, texts: list[list[int]]) -> None:
    one, two, three = texts
    assert_same(exact.step((one, 0, 1, 0), (two, 0, 99, 1), (three, 0, 6, 5), (one, 0, 40, 3)), exact)
    assert_same(exact.step((two, 99, 100, 1), (one, 1, 3, 0), (one, 40, 103, 3), (three, 6, 7, 5)), exact)
    assert_same(exact.step((one, 3, 4, 0), (three, 7, 8, 5), (two, 100, 101, 1), (one, 103, 104, 3)), exact)
    room = exact.fused.model.layout.ring_slots - golden().config.sliding_window + 1  # rows that a ring can take at once
    assert_same(exact.step((two, 101, 101 + room, 1), (one, 104, 105 + room, 3), (three, 8, 9 + room, 5)), exact)


def test_rows_with_drafts_that_are_taken_back_equal(exact: Pair, texts: list[list[int]]) -> None:
    one, two, _ = texts
    exact.step((one, 0, 81, 0), (two, 0, 30, 1))
    positions = [81, 30]
    for accepted in ((1, 4), (2, 6), (5, 3)):
        pieces = [
            (text[: p + taken] + [9] * (6 - taken), p, p + 6, slot)
            for slot, (text, p, taken) in enumerate(zip((one, two), positions, accepted))
        ]
        assert_same(exact.step(*pieces), exact)
        positions = [p + taken for p, taken in zip(positions, accepted)]


def test_snapshots_and_restores_equal(exact: Pair, texts: list[list[int]]) -> None:
    """Taken in long chunks, in short pieces and at their borders; the restored slot was full of NaN before."""
    one, two, _ = texts
    assert_same(exact.step((one, 0, 70, 0), (two, 0, 3, 1), snapshots=[[0, 33, 0], [0, 64, 1], [1, 2, 2]]), exact)
    assert_same(exact.step((one, 70, 75, 0), (two, 3, 5, 1), snapshots=[[1, 5, 3], [0, 72, 2]]), exact)
    for engine in (exact.plain, exact.fused):
        mine, source = (torch.tensor(engine.table(slot)) for slot in (2, 0))
        engine.cache.blocks[mine[:4]] = engine.cache.blocks[source[:4]]
    assert_same(exact.step((two, 5, 6, 1), (one, 64, 90, 2), restores=[[2, 1]], snapshots=[[1, 80, 1]]), exact)


@pytest.mark.parametrize("compact", [False, True], ids=["masked", "compact"])
def test_bounded_replay_equals(texts: list[list[int]], compact: bool) -> None:
    """Steps of which the layers from the boundary on see all rows, some, and none."""
    both, (one, two, _) = pair(golden, "float64", compact), texts
    both.forget()
    floors = {"upper_from": [90, 0], "window_from": [0, 0]}
    for pieces in (
        [(one, 0, 60, 0), (two, 0, 7, 1)],
        [(one, 60, 99, 0), (two, 7, 40, 1)],
        [(one, 99, 100, 0), (two, 40, 41, 1)],
    ):
        assert_same(both.step(*pieces, **floors), both)
    assert_same(both.step((two, 0, 30, 5), upper_from=[100]), both)


def test_a_suffix_that_writes_no_entries_of_its_prefix_equals(exact: Pair, texts: list[list[int]]) -> None:
    """A prefix hit without a state snapshot: rows rebuild windows, and earlier entries come from shared blocks."""
    exact.step((texts[0], 0, 100, 0))
    for engine in (exact.plain, exact.fused):
        mine, source = (torch.tensor(engine.table(slot)) for slot in (3, 0))
        engine.cache.blocks[mine[:5]] = engine.cache.blocks[source[:5]]
    fields = {"window_from": [58], "upper_from": [58], "write_from": [80]}
    assert_same(exact.step((texts[0], 58, 110, 3), **fields), exact)


@pytest.mark.parametrize("compact", [False, True], ids=["masked", "compact"])
def test_features_equal(texts: list[list[int]], compact: bool) -> None:
    both = pair(golden, "float64", compact)
    both.forget()
    step = make_step([(texts[0], 0, 50, 0, both.plain.table(0)), (texts[1], 0, 20, 1, both.plain.table(1))])
    step.upper_from, step.sample_rows = np.array([30, 20]), np.zeros(0, dtype=np.int64)
    plain, fused = (e.model.forward_with_features(step, e.cache) for e in (both.plain, both.fused))
    assert fused[1].shape == (70, 3 * golden().config.hidden_size) and fused[1].any()
    for one, other in zip(plain, fused):
        assert (one - other).abs().max() <= RELATIVE * one.abs().max()


def test_a_row_alone_has_the_bits_that_it_has_in_company(texts: list[list[int]]) -> None:
    """bfloat16; in chunks, single rows and mixed steps, given products whose rows do not depend on each other."""
    fused = pair(golden, "bfloat16").fused
    fused.forget()
    one, two, _ = texts
    whole = fused.run(one, [])
    assert torch.isfinite(whole).all()
    assert torch.equal(fused.run(one[:60], [7, 8, 30], slot=1), whole[:60])
    fused.step((two, 0, 90, 2))
    mixed = fused.step((two, 90, 96, 2), (one, 60, 66, 1), (two, 0, 50, 4))
    assert torch.equal(mixed[6:12], whole[60:66])
    mixed = fused.step((one, 66, 67, 1), (two, 96, 97, 2))
    assert torch.equal(mixed[:1], whole[66:67])


def test_the_trained_model_agrees_in_bfloat16_and_chooses_the_same_tokens(full: bool) -> None:
    both = pair(trained, "bfloat16")
    both.forget()

    def logits_of(pieces: list[Piece], rows: Tensor) -> tuple[Tensor, Tensor]:
        one, other = (
            e.model.logits(hidden_TD[rows]) for e, hidden_TD in zip((both.plain, both.fused), both.step(*pieces))
        )
        return one, other

    choose_the_same_tokens(logits_of, 96 if full else 24)


@pytest.mark.slow
def test_the_trained_model_beyond_its_lists_agrees_in_float32() -> None:
    """Its window holds 128 keys, its lists 128 entries, and its candidates are cut from 512 entries on."""
    both, tokens = pair(trained, "float32"), random_tokens(trained().config, 620, 7)
    both.forget()
    for first, end in ((0, 301), (301, 302), (302, 600), (600, 606), (606, 607)):
        plain, fused = both.step((tokens, first, end, 0))
        assert (plain - fused).abs().max() <= 1e-4 * plain.abs().max()


def test_nothing_waits_and_every_decode_step_launches_the_same(texts: list[list[int]]) -> None:
    """The same operations on tensors of the same shapes at even and odd positions: a graph of one step serves others."""
    mode, calls = NoWaiting(), []

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        calls.append((name, [tuple(x.shape) for x in arguments if isinstance(x, Tensor)]))

    model, classes = pair(golden, "bfloat16").fused.model, golden().engram_classes
    ops = watched(row_by_row(), note)
    fused = FusedModel(model.config, load_stored(golden()), ops, layout=model.layout, token_classes=classes)
    engine, lists = Engine(fused, num_snapshots=1), []
    with mode:
        for waits in (lambda: torch.ones(2).nonzero(), lambda: torch.ones(2)[torch.ones(2) > 0], torch.ones(1).item):
            with pytest.raises(AssertionError):
                waits()
        engine.step((texts[0], 0, 20, 0), (texts[1], 0, 3, 1), snapshots=[[0, 16, 0]])
        for position in (20, 21, 22):
            calls.clear()
            engine.step((texts[0], position, position + 1, 0), (texts[1], position - 17, position - 16, 1))
            lists.append(list(calls))
    assert len(lists[0]) > 100 and lists[0] == lists[1] == lists[2]


def test_stored_weights_are_the_numbers_that_are_loaded() -> None:
    stored, loaded = load_stored(golden()), load_weights(golden())
    for spec in weight_specs(golden().config):
        assert stored[spec.name].dtype != torch.float32 or spec.dtype == "F32"
        numbers = dequantise(spec, stored[spec.name], stored.get(scale_name(spec.name)), torch.float32)
        assert torch.equal(numbers, loaded[spec.name])


def test_what_it_cannot_compute_is_refused(texts: list[list[int]]) -> None:
    layout = CacheLayout.of(golden().config, dtype="bfloat16", block_tokens=16)
    with pytest.raises(ValueError, match="token_classes"):
        FusedModel(trained().config, {}, twins(), layout=layout)
    fused = pair(golden, "bfloat16").fused
    fused.blocks_per_slot, blocks = 100, fused.blocks_per_slot
    try:
        with pytest.raises(AssertionError, match="position 1029"):
            fused.step((texts[0] * 7, 1020, 1030, 0))
    finally:
        fused.blocks_per_slot = blocks


def test_caches_lie_on_the_device_that_is_named() -> None:
    layout = CacheLayout.of(golden().config, dtype="bfloat16", block_tokens=16)
    cache = ModelCache(golden().config, layout, num_blocks=2, num_slots=1, num_snapshots=SNAPSHOTS, device="meta")
    assert {cache.blocks.device.type, cache.rings[0].device.type, cache.main_rows[2].device.type} == {"meta"}
