"""Snapshots hold a sequence's state as it was before a boundary: a sequence that begins from one has the same bits."""

import numpy as np
import pytest
import torch
from small_models import Engine, differing, golden_model, make_step, random_tokens

from deepinfer.model.ring_writes import ring_writes
from deepinfer.ops import native, reference

SETTINGS = [
    (native, "full", "float32"),
    pytest.param((reference, "none", "float64"), marks=pytest.mark.slow),
]
LENGTH, SNAPSHOTS = 150, 6


@pytest.fixture(scope="module", params=SETTINGS, ids=["native-full-float32", "reference-none-float64"])
def engine(request: pytest.FixtureRequest) -> Engine:
    ops, numerics, dtype = request.param
    return golden_model().engine(
        ops(), numerics, dtype, backtrack=6, num_draft_layers=2, compact=True, num_snapshots=SNAPSHOTS
    )


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return random_tokens(golden_model().config, LENGTH, 31)


@pytest.fixture(scope="module")
def cold(engine: Engine, tokens: list[int]) -> torch.Tensor:
    return engine.run(tokens, [])


def resume(engine: Engine, tokens: list[int], start: int, snapshot: int, slot: int, **floors: int) -> torch.Tensor:
    """Rows from `start` on of slot `slot`, which is full of NaN before, over copies of the blocks of slot 0."""
    engine.cache.fill_nan_slots([slot])
    source, mine = (torch.tensor(engine.table(s)) for s in (0, slot))
    engine.cache.blocks[mine] = 0xFF
    shared = start // engine.model.layout.block_tokens
    engine.cache.blocks[mine[:shared]] = engine.cache.blocks[source[:shared]]
    fields = {name: [value] for name, value in floors.items()}
    middle = (start + LENGTH) // 2
    first = engine.step((tokens, start, middle, slot), restores=[[slot, snapshot]], **fields)
    return torch.cat((first, engine.step((tokens, middle, LENGTH, slot), **fields)))


@pytest.mark.parametrize("ends", [[LENGTH], [64, LENGTH], [30, 81, LENGTH], [40, 47, 48, 49, 96, 97, LENGTH]])
def test_a_sequence_that_begins_from_a_snapshot_has_the_same_bits(
    engine: Engine, tokens: list[int], cold: torch.Tensor, ends: list[int]
) -> None:
    """Boundaries at the start, in the middle and at the end of chunks, several in one of them."""
    boundaries = [16, 32, 48, 64, 96, 144]
    engine.run(tokens, [], slot=7)
    wanted = engine.visible(7, LENGTH, layers=10)
    engine.cache.fill_nan_slots(list(range(len(engine.cache.state))))
    first = 0
    for end in ends:
        taken = [[0, b, i] for i, b in enumerate(boundaries) if first < b <= end]
        engine.step((tokens, first, end, 0), **({"snapshots": taken} if taken else {}))
        first = end
    engine.cache.fill_nan_slots([0])  # what is restored does not come from the slot
    for snapshot, start in enumerate(boundaries):
        assert torch.equal(resume(engine, tokens, start, snapshot, 1 + snapshot), cold[start:])
        assert differing(engine.visible(1 + snapshot, LENGTH, layers=10), wanted) == []


def test_a_snapshot_at_the_start_of_a_chunk_is_the_slot_as_it_was(
    engine: Engine, tokens: list[int], cold: torch.Tensor
) -> None:
    engine.run(tokens[:64], [])
    engine.step((tokens, 64, 100, 0), snapshots=[[0, 64, 3]])
    assert torch.equal(resume(engine, tokens, 64, 3, 5), cold[64:])


def test_a_snapshot_can_be_restored_and_replaced_in_one_step(
    engine: Engine, tokens: list[int], cold: torch.Tensor
) -> None:
    engine.run(tokens[:96], [])
    engine.step((tokens, 96, 97, 0), snapshots=[[0, 96, 0]])
    other = random_tokens(golden_model().config, 40, 32)
    engine.cache.fill_nan_slots([4])
    mine, source = torch.tensor(engine.table(4)), torch.tensor(engine.table(0))
    engine.cache.blocks[mine[:6]] = engine.cache.blocks[source[:6]]
    rows = engine.step(
        (other, 0, 40, 3), (tokens, 96, LENGTH, 4), (tokens, 97, 115, 0), restores=[[4, 0]], snapshots=[[2, 112, 0]]
    )
    assert torch.equal(rows[40 : 40 + LENGTH - 96], cold[96:])
    assert torch.equal(resume(engine, tokens, 112, 0, 5), cold[112:])


@pytest.mark.parametrize("upper", [64, 100, 128])
def test_snapshots_before_the_floor_of_bounded_replay_serve_any_later_floor(
    engine: Engine, tokens: list[int], upper: int
) -> None:
    """Upper rings of dropped rows hold nothing, and nobody looks."""
    wanted = engine.run(tokens, [], upper_from=upper)[upper:]
    engine.forget()
    engine.step((tokens, 0, LENGTH, 0), upper_from=[upper], snapshots=[[0, 48, 0], [0, 64, 1]])
    for start, snapshot in ((48, 0), (64, 1)):
        rows = resume(engine, tokens, start, snapshot, 2, upper_from=upper)
        assert torch.equal(rows[upper - start :], wanted)


def test_draft_rings_are_written_by_the_same_call(engine: Engine, tokens: list[int]) -> None:
    """Random keys stand for those of a drafter, one for each position."""
    cache, config, ring_slots = engine.cache, engine.model.config, engine.model.layout.ring_slots
    ring = cache.rings[config.num_hidden_layers + 1]
    keys = torch.randn(LENGTH, config.head_dim, dtype=cache.dtype, generator=torch.Generator().manual_seed(1))
    for first, end, taken in ((0, 70, []), (70, LENGTH, [[0, 80, 1], [0, 144, 2]])):
        step = make_step([(tokens, first, end, 0, engine.table(0))])
        step.snapshots = np.array(taken, dtype=np.int64).reshape(-1, 3)
        engine.model.forward(step, cache)
        writes = ring_writes(step, ring_slots, cache.num_slots)
        engine.model.ops.write_rows(
            cache.kind("window"), ring, writes.outer_T, writes.inner_T, keys[first:end][writes.rows_T]
        )
    for outer, boundary in ((0, LENGTH), (cache.num_slots + 1, 80), (cache.num_slots + 2, 144)):
        newest = torch.arange(boundary - ring_slots, boundary)
        held = engine.model.ops.read_rows(
            cache.kind("window"), ring, torch.full_like(newest, outer), newest % ring_slots, cache.dtype
        )
        alone = torch.zeros_like(ring[:1])
        engine.model.ops.write_rows(
            cache.kind("window"), alone, torch.zeros_like(newest), newest % ring_slots, keys[newest]
        )
        wanted = engine.model.ops.read_rows(
            cache.kind("window"), alone, torch.zeros_like(newest), newest % ring_slots, cache.dtype
        )
        assert torch.equal(held, wanted)


def test_a_boundary_outside_the_step_is_refused(engine: Engine, tokens: list[int]) -> None:
    engine.run(tokens[:40], [])
    for boundary in (32, 64):
        with pytest.raises(AssertionError, match="boundary"):
            engine.step((tokens, 40, 50, 0), snapshots=[[0, boundary, 0]])
