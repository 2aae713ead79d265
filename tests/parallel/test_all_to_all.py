"""One layer's experts over several ranks against the same experts in one place."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from thread_peers import ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.model.layer import LocalExperts
from deepinfer.model.layer_weights import ExpertWeights
from deepinfer.ops import Ops, native, reference
from deepinfer.parallel.all_to_all import AllToAllDispatch, SpreadExperts
from deepinfer.parallel.placement import Placement

HIDDEN, INNER, EXPERTS = 64, 32, 12


@dataclass(frozen=True)
class Case:
    """Experts of one layer, and rows of each rank with what they chose."""

    ops: Ops
    numerics: str
    dtype: torch.dtype
    w13: list[Tensor]
    w2: list[Tensor]
    rows: list[tuple[Tensor, Tensor, Tensor]]  # of each rank: x [T, D], picks [T, X], weights [T, X]

    @property
    def wide(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def weights(self, experts: list[int]) -> ExpertWeights:
        """Those of some experts, in memory of their own."""
        gate, shared = torch.zeros(EXPERTS, HIDDEN, dtype=self.wide), torch.zeros(HIDDEN, INNER, dtype=self.dtype)
        mine = [tuple(table[e].clone() for e in experts) for table in (self.w13, self.w2)]
        return ExpertWeights(gate, gate[:, 0], shared, shared, *mine, chosen=self.rows[0][1].shape[1])

    def activate(self, h: Tensor, weight: Tensor | None) -> Tensor:
        out = self.ops.swiglu(h, weight, 10.0)
        return self.ops.quantise_activation(out) if self.numerics == "full" else out

    def alone(self, rank: int) -> Tensor:
        return LocalExperts(self.ops, self.weights(list(range(EXPERTS))), self.activate).start(*self.rows[rank])()

    def layer(self, dispatch: AllToAllDispatch) -> SpreadExperts:
        return dispatch.layer(0, self.weights(list(dispatch.experts_of(0))), self.activate)

    def dispatch(self, peers: ThreadPeers, placement: Placement, *, reproducible: bool = True) -> AllToAllDispatch:
        fixed = {"numerics": self.numerics, "reproducible": reproducible}
        return AllToAllDispatch(peers, self.ops, trunk=placement, draft=None, **fixed)


def case(seed: int, counts: list[int], ops: Ops, dtype: torch.dtype, numerics: str = "full", skew: int = 0) -> Case:
    """`counts` rows for each rank; with `skew` all of them choose the first `skew` experts."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    rows = []
    for count in counts:
        x = random(count, HIDDEN)
        order = torch.rand(count, EXPERTS, generator=generator).argsort(1)
        picks = order[:, :skew].sort(1).values * 0 + torch.arange(skew) if skew else order[:, :3].contiguous()
        weights = torch.rand(picks.shape, generator=generator, dtype=torch.float64).to(wide)
        rows.append((ops.quantise_activation(x) if numerics == "full" else x, picks, weights))
    w13, w2 = ([random(*shape) / 8 for _ in range(EXPERTS)] for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER)))
    return Case(ops, numerics, dtype, w13, w2, rows)


def shuffled(seed: int, ranks: int, copies: int) -> Placement:
    """Every expert somewhere, some several times, anywhere."""
    rng = np.random.default_rng(seed)
    row = rng.permutation(np.concatenate((np.arange(EXPERTS), rng.integers(0, EXPERTS, copies))))
    return Placement(row[None], EXPERTS, ranks)


def spread(given: Case, placement: Placement, *, reproducible: bool = True) -> list[Tensor]:
    def rank(peers: ThreadPeers) -> Tensor:
        return given.layer(given.dispatch(peers, placement, reproducible=reproducible)).start(*given.rows[peers.rank])()

    return run_ranks(len(given.rows), rank)


CASES = [  # rows of each rank, copies, experts that all rows choose (0: any)
    ([5, 3], 0, 0),
    ([1, 0], 4, 0),
    ([0, 0], 0, 0),
    ([40, 0, 7], 3, 0),
    ([9, 9, 0, 33], 4, 0),
    ([6, 2, 0, 8], 0, 3),  # everything goes to one rank
    ([17, 0, 1, 4], 8, 2),
]
NUMBERS = [
    *(
        (reference(), dtype, numerics)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        for numerics in ("full", "kv")
    ),
    (native(), torch.float32, "full"),
]


@pytest.mark.parametrize(("ops", "dtype", "numerics"), NUMBERS, ids=lambda v: getattr(v, "name", str(v)))
@pytest.mark.parametrize("number", range(len(CASES)))
def test_unreduced_rows_give_the_bits_of_one_place(number: int, ops: Ops, dtype: torch.dtype, numerics: str) -> None:
    counts, copies, skew = CASES[number]
    given = case(number, counts, ops, dtype, numerics, skew)
    for rank, found in enumerate(spread(given, shuffled(number, len(counts), copies))):
        assert found.dtype == dtype and torch.equal(found, given.alone(rank)), rank


@pytest.mark.parametrize(("counts", "copies", "skew"), CASES)
def test_partial_sums_are_close(counts: list[int], copies: int, skew: int) -> None:
    given = case(1, counts, reference(), torch.float64, "full", skew)
    for rank, found in enumerate(spread(given, shuffled(1, len(counts), copies), reproducible=False)):
        torch.testing.assert_close(found, given.alone(rank), rtol=1e-12, atol=1e-12)


def test_a_row_alone_and_in_company_has_the_same_bits_with_copies_and_partial_sums() -> None:
    """Wherever it stands, on either rank: float32 sums of three experts, of which some have copies and others have none."""
    given, placement = case(3, [31, 20], reference(), torch.float32, "kv"), shuffled(3, 2, 12)
    whole = spread(given, placement, reproducible=False)
    for home in range(2):
        for row in range(len(whole[home])):
            alone = tuple(part[row : row + 1] for part in given.rows[home])
            none = tuple(part[:0] for part in given.rows[home])
            for rows in ([alone, none], [none, alone]):
                found = spread(replace(given, rows=rows), placement, reproducible=False)
                assert torch.equal(torch.cat(found)[0], whole[home][row]), (home, row)


class Counting:
    """Peers that note what is sent."""

    def __init__(self, peers: ThreadPeers) -> None:
        self.peers, self.rank, self.size, self.sent = peers, peers.rank, peers.size, []

    def all_to_all(self, x: Tensor) -> Tensor:
        self.sent.append(("counts", x.tolist()))
        return self.peers.all_to_all(x)

    def exchange(self, rows: Tensor, send: list[int], receive: list[int]):
        self.sent.append((rows.shape[1], list(send)))
        return self.peers.exchange(rows, send, receive)


@pytest.mark.parametrize("reproducible", [True, False])
def test_a_row_travels_once_to_a_rank_and_less_returns_as_sums(reproducible: bool) -> None:
    """Three experts of one rank: one message of codes, scales, slots and weights a row; three results come back, or one."""
    given = case(0, [4, 2], reference(), torch.float32, "full", 3)
    placement = Placement(np.arange(EXPERTS)[None], EXPERTS, 2)

    def rank(peers: ThreadPeers) -> list:
        counting = Counting(peers)
        given.layer(given.dispatch(counting, placement, reproducible=reproducible)).start(*given.rows[peers.rank])()
        return counting.sent

    message, results = HIDDEN + HIDDEN // 32 + 3 * (4 + 4), 4 * HIDDEN
    each = 3 if reproducible else 1
    assert run_ranks(2, rank) == [
        [("counts", [4, 0]), (message, [4, 0]), (results, [4 * each, 2 * each])],
        [("counts", [2, 0]), (message, [2, 0]), (results, [0, 0])],
    ]


def test_copies_take_rows_in_turn() -> None:
    given = case(0, [8, 8], reference(), torch.float32, "full", 1)
    row = np.concatenate((np.arange(EXPERTS), np.arange(EXPERTS)))  # each rank has every expert

    def rank(peers: ThreadPeers) -> list[int]:
        counting = Counting(peers)
        given.layer(given.dispatch(counting, Placement(row[None], EXPERTS, 2))).start(*given.rows[peers.rank])()
        return counting.sent[0][1]

    assert run_ranks(2, rank) == [[4, 4], [4, 4]]


def test_experts_move_between_steps() -> None:
    """Weights are overwritten slot by slot, then rows go by the new placement; two slots of one rank hold one expert."""
    given = case(5, [7, 0, 20], reference(), torch.float32)
    before = Placement(np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 7, 3, 3]]), EXPERTS, 3)
    after_P = np.array([7, 3, 3, 9, 0, 11, 10, 2, 1, 4, 6, 5, 8, 0, 9])

    def rank(peers: ThreadPeers) -> tuple[list[int], Tensor]:
        dispatch, told = given.dispatch(peers, before), []
        layer = given.layer(dispatch)
        dispatch.count = lambda number, picks_TX: told.append((number, picks_TX))
        first = layer.start(*given.rows[peers.rank])()
        for slot, expert in enumerate(after_P.reshape(3, 5)[peers.rank].tolist()):
            for held, wanted in zip(dispatch.unit(0, slot), (given.w13[expert], given.w2[expert]), strict=True):
                held.copy_(wanted)
        dispatch.place(0, after_P)
        assert dispatch.experts_of(0) == tuple(after_P.reshape(3, 5)[peers.rank])
        assert torch.equal(layer.start(*given.rows[peers.rank])(), first)
        assert all(number == 0 and torch.equal(picks, given.rows[peers.rank][1]) for number, picks in told)
        return len(told), first

    for number, (told, found) in enumerate(run_ranks(3, rank)):
        assert told == 2 and torch.equal(found, given.alone(number))


def test_slots_do_not_share_memory() -> None:
    given = case(0, [1], reference(), torch.float32)
    row = np.append(np.arange(EXPERTS), 3)

    def rank(peers: ThreadPeers) -> None:
        dispatch = given.dispatch(peers, Placement(row[None], EXPERTS, 1))
        given.layer(dispatch)
        dispatch.unit(0, 12)[1].fill_(0)
        assert torch.equal(dispatch.unit(0, 3)[1], given.w2[3])

    run_ranks(1, rank)
