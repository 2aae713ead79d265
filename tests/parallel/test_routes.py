"""Routes against a plain loop over rows, ranks and router slots."""

import numpy as np
import pytest

from deepinfer.parallel.routes import Pairs, Route


def plain_route(slots_TX: np.ndarray, per_rank: int, ranks: int) -> list[tuple[int, int, list[int]]]:
    """(rank, row, slots there) of each row that travels, in order."""
    found = []
    for rank in range(ranks):
        for row, slots in enumerate(slots_TX.tolist()):
            there = [slot - rank * per_rank if slot // per_rank == rank else -1 for slot in slots]
            if max(there) >= 0:
                found.append((rank, row, there))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_route_equals_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, per_rank, rows = int(rng.integers(1, 7)), int(rng.integers(2, 6)), int(rng.choice([0, 1, 2, 9, 40]))
    chosen = int(rng.integers(1, min(5, ranks * per_rank) + 1))
    slots_TX = rng.permuted(np.tile(np.arange(ranks * per_rank), (rows, 1)), axis=1)[:, :chosen]
    if seed % 3 == 0:
        slots_TX = slots_TX[:1].repeat(rows, axis=0)  # all rows choose alike
    route, plain = Route.of(slots_TX, per_rank, ranks), plain_route(slots_TX, per_rank, ranks)
    assert list(zip(route.rank_N.tolist(), route.row_N.tolist(), route.slot_NX.tolist())) == plain
    assert route.counts_R == [sum(rank == r for rank, _, _ in plain) for r in range(ranks)]
    pairs = route.pairs()
    travelling = [(rank, row, pick) for rank, row, there in plain for pick, slot in enumerate(there) if slot >= 0]
    assert [plain[n][1] for n in pairs.row_P.tolist()] == [row for _, row, _ in travelling]
    assert pairs.pick_P.tolist() == [pick for _, _, pick in travelling]
    assert pairs.counts_R == [sum(rank == r for rank, _, _ in travelling) for r in range(ranks)]
    places = {(row, pick): place for place, (_, row, pick) in enumerate(travelling)}
    expected = [[places[row, pick] for pick in range(chosen)] for row in range(rows)]
    assert route.places(pairs).tolist() == expected


def test_both_ends_number_pairs_alike() -> None:
    """What a rank serves, source by source, is what each source counts for it."""
    rng = np.random.default_rng(3)
    ranks, per_rank = 3, 4
    routes = [Route.of(rng.integers(0, 12, (rows, 3)), per_rank, ranks) for rows in (5, 0, 17)]
    for here in range(ranks):
        slot_MX = np.concatenate([route.slot_NX[route.rank_N == here] for route in routes])
        source_M = np.repeat(np.arange(ranks), [route.counts_R[here] for route in routes])
        assert Pairs.of(slot_MX, source_M, ranks).counts_R == [route.pairs().counts_R[here] for route in routes]
