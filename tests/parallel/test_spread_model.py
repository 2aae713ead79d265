"""Models whose experts and n-gram rows lie on several ranks against the same models in one process."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from small_models import Engine, SmallModel, k6_model, random_tokens
from spread_models import Spread, own_weights, shares, skewed
from thread_peers import Board, ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.model.dspark import DSparkModel
from deepinfer.ops import native, reference
from deepinfer.parallel.engram_rows import SpreadTables
from deepinfer.parallel.placement import Placement

K6 = k6_model()
LAYERS, EXPERTS = K6.config.num_hidden_layers, K6.config.n_routed_experts
PROMPTS = [random_tokens(K6.config, length, seed) for seed, length in enumerate((21, 0, 3, 1))]  # rank 1 has no rows


def alone(spread: Spread, small: SmallModel = K6, **layout: int) -> Engine:
    return small.engine(spread.ops, spread.numerics, spread.dtype, compact=spread.compact, **layout)


def run(engine: Engine, tokens: list[int], cuts: Sequence[int] = (), **fields: int) -> Tensor:
    """A prompt in one step more than there are cuts, or as many steps without rows."""
    if tokens:
        return engine.run(tokens, list(cuts), **fields)
    for _ in range(len(cuts) + 1):
        engine.model.serve()
    return torch.zeros(0)


def check(spread: Spread, size: int, small: SmallModel = K6) -> None:
    def rank(peers: ThreadPeers) -> Tensor:
        return run(spread.engine(small, peers, spread.dispatch(small, peers)), PROMPTS[peers.rank])

    for number, found in enumerate(run_ranks(size, rank)):
        assert torch.equal(found, run(alone(spread, small), PROMPTS[number])), number


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("make", [reference, native])
def test_ranks_give_the_bits_of_one_process(make: Callable, size: int) -> None:
    check(Spread(make(), redundant=4), size)


@pytest.mark.parametrize(("numerics", "dtype"), [("kv", "float64"), ("none", "float32"), ("full", "bfloat16")])
def test_in_every_numerics_and_dtype(numerics: str, dtype: str) -> None:
    check(Spread(reference(), numerics, dtype), 2)


def test_p11_every_token_chooses_the_same_experts() -> None:
    """vLLM #35879, DeepEP #201: buffers sized for even routing."""
    check(Spread(native()), 4, skewed(K6, [0, 1]))
    check(Spread(native(), trunk=Placement(np.tile([7, 3, 3, 5, 0, 1, 2, 4, 6, 0, 1, 1], (LAYERS, 1)), EXPERTS, 4)), 4)


def test_tables_alone_may_be_replicated() -> None:
    check(Spread(native(), sharded=False), 2)


def test_partial_sums_are_close() -> None:
    spread = Spread(reference(), "none", "float64", reproducible=False)

    def rank(peers: ThreadPeers) -> Tensor:
        return run(spread.engine(K6, peers, spread.dispatch(K6, peers)), PROMPTS[peers.rank])

    for number, found in enumerate(run_ranks(2, rank)):
        torch.testing.assert_close(found, run(alone(spread), PROMPTS[number]), rtol=1e-9, atol=1e-9)


def test_a_forward_whose_rows_are_all_dropped_serves_the_layers_after_the_boundary() -> None:
    spread = Spread(native(), compact=True)
    tokens = random_tokens(K6.config, 40, 9)

    def steps(engine: Engine, rank: int) -> Tensor:
        if rank == 0:
            return run(engine, tokens, [20], upper_from=30)  # none of the first step's rows go on, some of the second's
        return run(engine, tokens[:12], [5])

    found = run_ranks(2, lambda peers: steps(spread.engine(K6, peers, spread.dispatch(K6, peers)), peers.rank))
    for number, rows in enumerate(found):
        assert torch.equal(rows, steps(alone(spread), number))
    assert not found[0][:30].any() and found[0][30:].any()


def test_decoding_and_prefill_of_ranks_meet() -> None:
    """One rank decodes while the other one works on a prompt in chunks, and then has nothing."""
    spread, count = Spread(native(), redundant=2), 6

    def rank(peers: ThreadPeers) -> list[int] | Tensor:
        engine = spread.engine(K6, peers, spread.dispatch(K6, peers))
        if peers.rank == 0:
            return engine.greedy(PROMPTS[0], count)
        rows = run(engine, PROMPTS[0][:9], [2, 3, 7])
        for _ in range(count - 4):
            engine.model.serve()
        return rows

    tokens, rows = run_ranks(2, rank)
    assert tokens == alone(spread).greedy(PROMPTS[0], count)
    assert torch.equal(rows, run(alone(spread), PROMPTS[0][:9]))


def draft_hidden(
    small: SmallModel, spread: Spread, dispatch: object, weights: dict[str, Tensor], sequences: int
) -> Tensor:
    """Hidden states of a block behind empty windows."""
    c = small.config
    model = DSparkModel(c, weights, spread.ops, numerics=spread.numerics, dtype=spread.dtype, dispatch=dispatch)
    if not sequences:
        model.serve()
        return torch.zeros(0)
    window = c.sliding_window

    def nothing(at: slice) -> Tensor:
        return torch.zeros(len(range(sequences)[at]), window, c.head_dim)

    newest_S, mask_SW = torch.arange(sequences) + 5, torch.zeros(sequences, window, dtype=torch.bool)
    with torch.inference_mode():
        return model.block(newest_S, torch.arange(sequences) + 1, [nothing] * len(model.layers), mask_SW)


@pytest.mark.parametrize("size", [2, 4])
def test_the_draft_module_gives_the_bits_of_one_process(size: int) -> None:
    spread, sequences = Spread(native(), redundant=4), (3, 0, 1, 2)

    def rank(peers: ThreadPeers) -> Tensor:
        dispatch = spread.dispatch(K6, peers)
        return draft_hidden(K6, spread, dispatch, own_weights(K6, dispatch, peers.rank, None), sequences[peers.rank])

    for number, found in enumerate(run_ranks(size, rank)):
        assert torch.equal(found, draft_hidden(K6, spread, None, K6.weights, sequences[number]))


class Diary(Board):
    """A board that remembers what was said on it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.lines: list[str] = []

    def meet(self, rank: int, what: tuple) -> list:
        self.lines.append(what[0])
        return super().meet(rank, what)


@pytest.mark.parametrize("numerics", ["full", "none"])
def test_serving_makes_the_collectives_of_a_forward(numerics: str) -> None:
    diary, spread = Diary(), Spread(reference(), numerics)
    dispatch = spread.dispatch(K6, ThreadPeers(diary, 0))
    engine = spread.engine(K6, ThreadPeers(diary, 0), dispatch)
    lines = []
    for act in (lambda: run(engine, PROMPTS[0]), lambda: run(engine, PROMPTS[3]), engine.model.serve):
        diary.lines.clear()
        act()
        lines.append(list(diary.lines))
    assert lines[0] == lines[1] == lines[2] and len(lines[0]) == 3 * (LAYERS + len(K6.config.engram_layer_ids))


def test_serving_makes_the_collectives_of_a_round_of_drafts() -> None:
    diary, spread = Diary(), Spread(reference())
    dispatch = spread.dispatch(K6, ThreadPeers(diary, 0))
    for sequences in (2, 0):
        draft_hidden(K6, spread, dispatch, K6.weights, sequences)
    half = len(diary.lines) // 2
    assert diary.lines[:half] == diary.lines[half:] and half == 3 * K6.config.num_nextn_predict_layers


@pytest.mark.parametrize("numerics", ["full", "kv"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_lookups_of_spread_tables(numerics: str, size: int) -> None:
    """Rows asked for often, by everybody, by nobody; a rank that has no row of a table."""
    generator = torch.Generator().manual_seed(size)
    tables = [reference().quantise_activation(torch.randn(rows, 64, generator=generator)) for rows in (3, 101)]
    asked = [torch.randint(0, 3, (rows, 4), generator=generator) for rows in (7, 0, 1, 40, 2)]

    def rank(peers: ThreadPeers) -> list[Tensor]:
        bounds = [shares(len(table), size) for table in tables]
        spread = SpreadTables(peers, native(), bounds, numerics=numerics)
        mine = [table[edges[peers.rank] : edges[peers.rank + 1]] for table, edges in zip(tables, bounds)]
        lookups = [spread.table(number, rows) for number, rows in enumerate(mine)]
        return [lookup(asked[peers.rank] * scale) for lookup, scale in zip(lookups, (1, 50))]

    for number, found in enumerate(run_ranks(size, rank)):
        assert torch.equal(found[0], tables[0][asked[number]]) and torch.equal(found[1], tables[1][asked[number] * 50])


def test_copies_change_nothing_when_rows_are_moved() -> None:
    """The same prompt before and after a layer's experts were dealt out anew in the middle of the traffic."""
    spread, rng = Spread(native(), redundant=4), np.random.default_rng(0)
    rows = [rng.permutation(np.append(np.arange(EXPERTS), rng.integers(0, EXPERTS, 4))) for _ in range(LAYERS)]

    def rank(peers: ThreadPeers) -> tuple[Tensor, Tensor]:
        dispatch = spread.dispatch(K6, peers)
        engine = spread.engine(K6, peers, dispatch)
        before = run(engine, PROMPTS[0])
        for layer, row in enumerate(rows):
            for slot, expert in enumerate(row.reshape(2, -1)[peers.rank].tolist()):
                one = f"layers.{layer}.ffn.experts.{expert}."
                w13, w2 = dispatch.unit(layer, slot)
                w13.copy_(torch.cat([K6.weights[one + "w1.weight"], K6.weights[one + "w3.weight"]]))
                w2.copy_(K6.weights[one + "w2.weight"])
            dispatch.place(layer, row)
        return before, run(engine, PROMPTS[0])

    for before, after in run_ranks(2, rank):
        assert torch.equal(before, after)
