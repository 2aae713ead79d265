"""N-gram tables of the fused model spread over ranks: hidden states are those of one rank that has all rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from chunk_worlds import ChunkWorlds
from decode_worlds import Worlds
from fused_models import NoWaiting, row_by_row, watched
from small_models import Engine, random_tokens
from spread_fused import CONFIG, FusedSpread
from thread_peers import ThreadPeers, run_ranks

from deepinfer.model.fused.chunk_step import ChunkStep
from deepinfer.model.fused.decode_step import DecodeStep
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.rehearsal import rehearsal
from deepinfer.model.fused.serve_step import ServeStep
from deepinfer.ops.engram_gather import engram_gather
from deepinfer.parallel.device_tables import DeviceTables

WIDTH, ROWS = 32, 11


def table() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 120, (ROWS, WIDTH), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return codes, torch.randint(120, 130, (ROWS, WIDTH // 32), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("most_rows", [8, 0], ids=["fixed", "splits"])
@pytest.mark.parametrize("edges", [[0, 4, 4, 11], [0, 0, 11, 11]], ids=["one-empty", "two-empty"])
def test_rows_of_any_rank_are_found_by_all(edges: list[int], most_rows: int) -> None:
    """Ranks with many tokens, with one and with none; a rank may have no rows of a table."""
    codes, powers = table()
    asked = [torch.tensor([[0, 10, 3], [4, 4, 0], [9, 5, 10]]), torch.tensor([[10, 2, 7]]), torch.empty(0, 3).long()]

    def rank(peers: ThreadPeers) -> None:
        tables = DeviceTables(peers, [edges], most_rows=most_rows)
        first, end = edges[peers.rank : peers.rank + 2]
        mine = codes[first:end], powers[first:end]
        lookup = tables.table(0, lambda rows_TR: engram_gather(*mine, rows_TR), end - first, 3)
        for turn in range(2):
            rows = asked[(peers.rank + turn) % 3]
            tables.begin(5 if turn else 3)
            if len(rows):
                assert torch.equal(lookup(rows), engram_gather(codes, powers, rows))
            else:
                lookup.serve()

    run_ranks(3, rank)


def test_a_rehearsal_says_nothing_to_anybody() -> None:
    codes, powers = table()

    def rank(peers: ThreadPeers) -> tuple[int, ...]:
        tables = DeviceTables(peers, [[0, 6, 11]])
        first, end = (0, 6) if peers.rank == 0 else (6, 11)
        mine = codes[first:end], powers[first:end]
        lookup = tables.table(0, lambda rows_TR: engram_gather(*mine, rows_TR), end - first, 2)
        tables.begin(4)
        if peers.rank == 0:  # the other rank is not there
            with rehearsal():
                return tuple(lookup(torch.tensor([[1, 9], [2, 3]])).shape)
        return (2, 2 * WIDTH)

    assert run_ranks(2, rank) == [(2, 2 * WIDTH)] * 2


@pytest.mark.parametrize("most_rows", [256, 8], ids=["fixed", "splits"])
def test_steps_of_ranks_with_rows_and_with_none(most_rows: int) -> None:
    """Tables alone are spread, and each rank has sequences of its own; the last one serves."""
    spread = FusedSpread(most_rows=most_rows)
    texts = [random_tokens(CONFIG, 60, seed) for seed in (1, 2)]
    steps = [[(0, 0, 40)], [(0, 40, 41), (1, 0, 3)], [(0, 41, 60), (1, 3, 4)]]

    def run(engine: Engine, begin: Callable[[int], None]) -> list[torch.Tensor]:
        found = []
        for pieces in steps:
            begin(sum(end - first for _, first, end in pieces))
            found.append(engine.step(*((texts[t], first, end, t) for t, first, end in pieces)))
        return found

    wanted = run(Engine(spread.model(), num_slots=4, blocks_per_slot=8), lambda rows: None)

    def rank(peers: ThreadPeers) -> None:
        model = spread.model(tables=spread.tables(peers))
        assert model.dispatch is None and model.elsewhere is not None and model.elsewhere.most_rows == most_rows
        if peers.rank == 2:
            for pieces in steps:
                model.elsewhere.begin(sum(end - first for _, first, end in pieces))
                model.serve()
            return
        got = run(Engine(model, num_slots=4, blocks_per_slot=8), model.elsewhere.begin)
        assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))

    run_ranks(3, rank)


def test_padded_steps_of_ranks_that_decode_fill_and_serve() -> None:
    """Experts and tables are spread. All three steps of a turn are made for as many rows as the largest is padded to."""
    spread, sizes, turns = FusedSpread(), [4, 12, 40], 2

    def parts(peers: ThreadPeers) -> FusedModel:
        return spread.model(spread.dispatch(peers), tables=spread.tables(peers))

    def agreed(peers: ThreadPeers, rows: int) -> int:
        return int(peers.all_gather(torch.tensor(rows)).max())

    def fill(peers: ThreadPeers) -> None:
        worlds = ChunkWorlds(spread.model(), num_slots=3, max_model_len=64, most_rows=40)
        step = ChunkStep(parts(peers), worlds.padded, worlds.sequences, row_sizes=sizes)
        for pieces in ([(0, 0, 23), (1, 0, 4)], [(0, 23, 24), (2, 0, 9)]):
            plan = worlds.plan(*pieces)
            wanted = worlds.model.forward(worlds.input(*pieces), worlds.direct)
            shared = agreed(peers, step.size(len(wanted), 1).rows)
            assert step.takes(plan, shared) and torch.equal(step(plan, shared)[: len(wanted)], wanted)
            worlds.assert_equal()

    def decode(peers: ThreadPeers) -> None:
        whole = spread.model()
        both, slots = Worlds(whole, num_slots=4, max_model_len=60, depth=3, seed=1), np.array([0, 2])
        for slot in slots.tolist():
            both.admit(slot, 13 + slot, 50)
        alone = DecodeStep(whole, both.host, both.sequences, row_sizes=sizes)
        step = DecodeStep(parts(peers), both.device, both.sequences, row_sizes=sizes)
        for _ in range(turns):
            plan = both.plan(slots, 3)
            both.state.resolve(plan)
            wanted = alone(plan).hidden_TD
            rows = step(plan, agreed(peers, len(wanted)))
            count = int(rows.row_starts_S1[-1])
            assert torch.equal(rows.hidden_TD[:count], wanted[:count]) and rows.hidden_TD.isfinite().all()
            both.accept(slots, rows.checked_S[:2].numpy().astype(np.int64))

    def serve(peers: ThreadPeers) -> None:
        model = parts(peers)
        assert model.elsewhere is not None
        step = ServeStep(model.serve, model.elsewhere, model.device)
        for _ in range(turns):
            step(agreed(peers, 0))

    run_ranks(4, lambda peers: (fill, decode, serve, serve)[peers.rank](peers))


def test_lookups_of_fixed_size_wait_for_nothing() -> None:
    """A graph may hold them."""
    spread, tokens = FusedSpread(), random_tokens(CONFIG, 30, 1)

    def rank(peers: ThreadPeers) -> None:
        model = spread.model(ops=watched(row_by_row(), lambda *_: None), tables=spread.tables(peers))
        engine = Engine(model, num_slots=2, blocks_per_slot=4)
        assert model.elsewhere is not None
        with NoWaiting():
            model.elsewhere.begin(32)
            engine.step((tokens, 0, 30, peers.rank))

    run_ranks(2, rank)
