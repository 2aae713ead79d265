"""Steps of the fused model divided among context ranks: hidden states, features and every byte of the caches are one rank's."""

from __future__ import annotations

import pytest
import torch
from chunk_worlds import ChunkWorlds
from fused_models import NoWaiting, golden, row_by_row, watched
from small_models import Engine, make_step, random_tokens
from spread_fused import CONFIG, FusedSpread
from step_worlds import StepWorld
from thread_peers import Board, ThreadPeers, run_ranks

from deepinfer.interfaces import StepInput
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.parallel.context import ContextDivision
from deepinfer.parallel.equal_shares import GatheredRows


def engine(replay: str, dtype: str = "bfloat16", peers: ThreadPeers | None = None, least_rows: int = 8) -> Engine:
    division = None if peers is None else ContextDivision(peers, least_rows)
    model = FusedSpread(dtype=dtype, compact=replay == "compact").model(division=division)
    return Engine(model, num_slots=6, blocks_per_slot=16, num_snapshots=4)


def make(tokens: list[int], first: int, end: int, engine: Engine) -> StepInput:
    """Of slot 0."""
    return make_step([(tokens, first, end, 0, engine.table(0))])


CASES = [
    pytest.param(2, "none", "bfloat16", id="2-none"),
    pytest.param(4, "compact", "bfloat16", id="4-compact"),
    pytest.param(3, "mask", "bfloat16", id="3-mask"),
    pytest.param(3, "compact", "float64", id="3-compact-float64", marks=pytest.mark.slow),
    pytest.param(4, "none", "float32", id="4-none-float32", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "replay", "dtype"), CASES)
def test_divided_steps_give_the_bits_of_one_rank(size: int, replay: str, dtype: str) -> None:
    """Chunks of many lengths beside answers, snapshots, restores, prefix hits without a snapshot, replay."""
    alone = engine(replay, dtype)
    world = StepWorld(size, alone, replay=replay != "none")
    steps, wanted = [world.step() for _ in range(10)], []
    for step in steps:
        hidden, features = alone.model.forward_with_features(step, alone.cache)
        wanted.append((hidden, features, alone.cache.blocks.clone(), alone.cache.state.clone()))

    def rank(peers: ThreadPeers) -> int:
        mine, divided = engine(replay, dtype, peers), 0
        for step, (hidden, features, blocks, state) in zip(steps, wanted):
            got = mine.model.forward_with_features(step, mine.cache)
            assert torch.equal(got[0], hidden) and torch.equal(got[1], features)
            assert torch.equal(mine.cache.blocks, blocks) and torch.equal(mine.cache.state, state)
            divided += mine.model.division.divide(step) is not None
        return divided

    assert min(run_ranks(size, rank)) >= 3


@pytest.mark.parametrize("kept", [0, 2])
def test_fewer_rows_go_on_than_there_are_ranks_and_experts_and_tables_lie_on_all_of_them(kept: int) -> None:
    """Ranks without rows of their own in the upper layers keep up with the others' caches, and serve."""
    spread, size, length = FusedSpread(compact=True), 4, 120
    tokens = random_tokens(CONFIG, length + 30, 3)
    floors = [length - kept, 0]
    steps = [
        (((tokens, 0, length, 1),), floors[:1]),
        (((tokens, length, length + 29, 1), (tokens, 0, 1, 2)), floors),
        (((tokens, length + 29, length + 30, 1), (tokens, 1, 2, 2)), floors),  # on all ranks alike
    ]

    def answer(engine: Engine) -> list[torch.Tensor]:
        found = []
        for pieces, upper_from in steps:
            if engine.model.elsewhere is not None:
                engine.model.elsewhere.begin(sum(end - first for _, first, end, _ in pieces))
            found.append(engine.step(*pieces, upper_from=upper_from))
        return found + list(engine.visible(1, length + 30, window_from=length - kept).values())

    wanted = answer(Engine(spread.model(), num_slots=4, blocks_per_slot=16))
    context = Board(size)

    def rank(peers: ThreadPeers) -> None:
        division = ContextDivision(ThreadPeers(context, peers.rank), least_rows=9)
        model = spread.model(spread.dispatch(peers), tables=spread.tables(peers), division=division)
        got = answer(Engine(model, num_slots=4, blocks_per_slot=16))
        assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))

    run_ranks(size, rank)


def test_rings_of_the_draft_module_are_those_of_one_rank() -> None:
    """It looks at features, which every rank has of all rows."""
    tokens, spread = random_tokens(CONFIG, 90, 5), FusedSpread()

    def rings(division: ContextDivision | None) -> list[torch.Tensor]:
        engine = Engine(spread.model(division=division), num_slots=2, blocks_per_slot=16)
        module = FusedDSpark(CONFIG, load_stored(golden()), row_by_row(), engine.model, layout=spread.layout())
        drafts = engine.cache.rings[CONFIG.num_hidden_layers :]
        for first, end in ((0, 61), (61, 90)):
            step = make(tokens, first, end, engine)
            features_TF = engine.model.forward_with_features(step, engine.cache)[1]
            newest = torch.arange(max(0, end - first - spread.layout().ring_slots), end - first)
            rows = torch.from_numpy(step.positions)[newest].int()
            module.observe(features_TF[newest], rows, rows % spread.layout().ring_slots, drafts)
        return [ring[0].clone() for ring in drafts]

    wanted = rings(None)
    found = run_ranks(3, lambda peers: rings(ContextDivision(peers, least_rows=8)))
    assert all(torch.equal(a, b) for one in found for a, b in zip(one, wanted, strict=True))


def test_a_divided_step_is_left_to_the_lane_without_graphs() -> None:
    """By its numbers of rows alone, so that all ranks do the same; shorter steps keep their graphs, on all ranks alike."""

    def rank(peers: ThreadPeers) -> list[bool]:
        worlds = ChunkWorlds(FusedSpread().model(), num_slots=3, max_model_len=128, most_rows=100)
        step = worlds.chunk_step()
        worlds.model.division = ContextDivision(peers, least_rows=50)
        chunks = ([(0, 0, 49), (1, 0, 40)], [(0, 0, 50)], [(0, 0, 3), (1, 0, 90)])
        return [step.takes(worlds.plan(*pieces)) for pieces in chunks]

    assert run_ranks(2, rank) == [[True, False, False]] * 2


def test_launches_of_a_divided_step_wait_for_nothing() -> None:
    """Row numbers, of what is gathered too, reach the device in copies that nobody waits for."""
    tokens = random_tokens(CONFIG, 90, 5)

    def rank(peers: ThreadPeers) -> None:
        ops = watched(row_by_row(), lambda *_: None)
        engine = Engine(FusedSpread().model(ops=ops, division=ContextDivision(peers, least_rows=8)), num_slots=2)
        with NoWaiting():
            engine.model.forward(make(tokens, 0, 61, engine), engine.cache)

    run_ranks(2, rank)


@pytest.mark.parametrize("counts", [(3, 3), (5, 2, 0), (0, 0)])
def test_unequal_shares_come_together_in_order(counts: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(1)
    owners = torch.tensor([rank for rank, count in enumerate(counts) for _ in range(count)], dtype=torch.int64)
    owner_G = owners[torch.randperm(len(owners), generator=rng)].numpy()
    rows = torch.randn(len(owner_G), 3, generator=rng).bfloat16()

    def rank(peers: ThreadPeers) -> None:
        here = torch.from_numpy(owner_G == peers.rank)
        padded = torch.cat((torch.zeros(1, 3).bfloat16(), rows[here]))  # rows here that do not travel
        gather = GatheredRows(peers, 1 + torch.arange(int(here.sum())).numpy(), owner_G)
        assert all(torch.equal(gather(padded)(), rows) for _ in range(2))

    run_ranks(len(counts), rank)
