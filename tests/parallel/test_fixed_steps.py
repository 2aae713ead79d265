"""Decode steps, chunks and drafts whose experts lie on several ranks: padded, resolved on the device, equal to one rank's."""

from typing import Any

import numpy as np
import pytest
import torch
from chunk_worlds import ChunkWorlds
from decode_worlds import Worlds
from fused_drafts import (
    MAX_LEN,
    PAD,
    SLOTS,
    cache_of,
    calibration,
    features_of,
    layout_of,
    sampling,
    tokens_of,
    trunk_of,
)
from fused_models import row_by_row
from small_models import make_step
from spread_fused import CONFIG, FusedSpread
from thread_peers import ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.model.fused.chunk_step import ChunkStep
from deepinfer.model.fused.decode_step import DecodeStep
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.serve_step import ServeStep
from deepinfer.parallel.device_dispatch import DeviceDispatch
from deepinfer.speculation.dspark_device import DeviceDSpark

SIZES = [4, 12, 40]  # of rows
STEPS = 2


def agreed(peers: ThreadPeers, rows: int) -> int:
    return int(peers.all_gather(torch.tensor(rows)).max())


@pytest.mark.parametrize("most_rows", [2048, pytest.param(4, marks=pytest.mark.slow)], ids=["fixed", "splits"])
def test_decode_steps_of_ranks_with_many_sequences_with_one_and_with_none(most_rows: int) -> None:
    """Caches and hidden states are those of one rank; the last ranks serve."""
    spread = FusedSpread(redundant=4, most_rows=most_rows)

    def serve(peers: ThreadPeers) -> int:
        dispatch = spread.dispatch(peers)
        model = spread.model(dispatch)
        step = ServeStep(model.serve, dispatch, model.device)
        for _ in range(STEPS):
            step(agreed(peers, 0))
        return step.stats.direct

    def decode(peers: ThreadPeers, sequences: int) -> int:
        whole, mine = spread.model(), spread.model(spread.dispatch(peers))
        both = Worlds(whole, num_slots=4, max_model_len=60, depth=3, seed=peers.rank)
        slots = np.arange(sequences)
        for slot in slots.tolist():
            both.admit(slot, 5 + 7 * slot, 50)
        both.go_on(slots, np.ones(sequences, dtype=np.int64))
        alone = DecodeStep(whole, both.host, both.sequences, row_sizes=SIZES)
        step = DecodeStep(mine, both.device, both.sequences, row_sizes=SIZES)
        for _ in range(STEPS):
            plan = both.plan(slots, 5)
            both.state.resolve(plan)
            wanted = alone(plan).hidden_TD
            rows = step(plan, agreed(peers, len(wanted)))
            count = int(rows.row_starts_S1[-1])
            assert sequences < count <= len(wanted)
            assert torch.equal(rows.hidden_TD[:count], wanted[:count]) and rows.hidden_TD.isfinite().all()
            both.assert_equal()
            both.accept(slots, rows.checked_S[:sequences].numpy().astype(np.int64))
        return step.stats.direct

    def rank(peers: ThreadPeers) -> int:
        return decode(peers, (3, 1)[peers.rank]) if peers.rank < 2 else serve(peers)

    assert run_ranks(4, rank) == [STEPS] * 4


def test_a_step_with_chunks_beside_one_that_decodes() -> None:
    """The decoding rank's few rows travel in a step of the other's size."""
    spread = FusedSpread()

    def chunks(peers: ThreadPeers) -> list[int]:
        worlds = ChunkWorlds(spread.model(), num_slots=3, max_model_len=64, most_rows=40)
        mine = spread.model(spread.dispatch(peers))
        step, sizes = ChunkStep(mine, worlds.padded, worlds.sequences, row_sizes=SIZES), []
        for pieces in ([(0, 0, 23), (1, 0, 4)], [(0, 23, 24), (2, 0, 9)]):
            plan = worlds.plan(*pieces)
            wanted = worlds.model.forward(worlds.input(*pieces), worlds.direct)
            sizes.append(agreed(peers, step.size(len(wanted), 1).rows))
            assert step.takes(plan, sizes[-1]) and torch.equal(step(plan, sizes[-1])[: len(wanted)], wanted)
            worlds.assert_equal()
        return sizes

    def decode(peers: ThreadPeers) -> list[int]:
        whole, mine = spread.model(), spread.model(spread.dispatch(peers))
        both, sizes, padded = Worlds(whole, num_slots=4, max_model_len=60, depth=3, seed=1), [], set()
        both.admit(2, 13, 50)
        alone, step = (
            DecodeStep(model, cache, both.sequences) for model, cache in ((whole, both.host), (mine, both.device))
        )
        for _ in range(2):
            plan = both.plan(np.array([2]))
            sizes.append(agreed(peers, 1))
            assert torch.equal(alone(plan).hidden_TD, step(plan, sizes[-1]).hidden_TD[:1])
            padded.add((step.size(1, 0, 1, sizes[-1]).rows, step.size(1, 0, 1, sizes[-1]).shared))
            both.go_on(np.array([2]), np.array([1]))
        assert padded == {(16, 40), (8, 12)}, "about as many rows as the others', and room for all of theirs"
        return sizes

    assert run_ranks(2, lambda peers: decode(peers) if peers.rank else chunks(peers)) == [[40, 12], [40, 12]]


class Noted:
    """Stands for the graphs of a step, where there are none."""

    def __init__(self) -> None:
        self.captured: list[int] = []

    def has(self, size: Any) -> bool:
        return False

    def capture(self, size: Any) -> None:
        self.captured.append(max(size.rows, size.shared))


def test_steps_in_which_numbers_are_exact_are_no_graphs() -> None:
    """Neither ahead of them, when nobody has agreed on anything, nor in company of a rank with many rows."""

    def rank(peers: ThreadPeers) -> list[list[int]]:
        model = FusedSpread(most_rows=12)
        mine = model.model(model.dispatch(peers))
        decoding = Worlds(mine, num_slots=4, max_model_len=60, depth=3, seed=0)
        chunks = ChunkWorlds(mine, num_slots=3, max_model_len=64, most_rows=40)
        decode = DecodeStep(mine, decoding.device, decoding.sequences, row_sizes=SIZES)
        chunk = ChunkStep(mine, chunks.padded, chunks.sequences, row_sizes=SIZES)
        found = []
        for step in (decode, chunk):
            step._graphs = noted = Noted()  # type: ignore[assignment]
            for rows, shared in ((4, 0), (4, 12), (4, 40), (16, 0)):
                step.capture(rows, *([0] if step is decode else []), 1, shared)
            found.append(noted.captured)
        return found

    assert run_ranks(1, rank) == [[[4, 12], [4, 12]]]


def test_padding_asks_no_experts() -> None:
    """Rows of padding travel as nobody's, so that experts get the live rows alone."""
    spread = FusedSpread()

    def rank(peers: ThreadPeers) -> set[int]:
        ops, pairs = row_by_row(), []
        dispatch = spread.dispatch(peers, ops)
        mine, whole = spread.model(dispatch), spread.model()
        for layer in mine.layers:
            served = layer.experts.elsewhere._serve  # type: ignore[union-attr]

            def noted(rows_MB: Tensor, served: Any = served) -> Any:
                found = served(rows_MB)
                pairs.append(int(found[1].starts_E1[-1]))
                return found

            layer.experts.elsewhere._serve = noted  # type: ignore[union-attr]
        both = Worlds(whole, num_slots=4, max_model_len=60, depth=3, seed=peers.rank)
        both.admit(0, 13, 50)
        step = DecodeStep(mine, both.device, both.sequences, row_sizes=[12])
        step(both.plan(np.array([0])), agreed(peers, 12))
        sums = peers.all_gather(torch.tensor(pairs)).sum(0)
        return set(sums.tolist())

    assert run_ranks(2, rank) == [{2 * CONFIG.num_experts_per_tok}] * 2


def draft(spread: FusedSpread, dispatch: DeviceDispatch | None, sequences: int, shared: int) -> list[list[int]] | None:
    """A round's tokens for so many sequences with random keys in their rings; none where the rank serves."""
    layout, slots = layout_of(CONFIG, spread.dtype, depth=4), np.arange(sequences)
    ops, stored = row_by_row(), spread.stored(dispatch)
    trunk = trunk_of(CONFIG, stored, spread.dtype)
    model = FusedDSpark(CONFIG, stored, ops, trunk, layout=layout, dispatch=dispatch)
    if dispatch is not None and not sequences:
        ServeStep(model.serve, dispatch, model.device)(shared * CONFIG.dspark_block_size)
    if not sequences:
        return None
    drafter = DeviceDSpark(
        model,
        cache_of(CONFIG, layout),
        depth=4,
        calibration=calibration(CONFIG.dspark_block_size),
        temperatures=sampling().temperatures,
        seeds=sampling().seeds,
    )
    known = DeviceSequences(SLOTS, MAX_LEN, PAD + 1, depth=4)
    for slot in slots.tolist():
        known.admit(slot, tokens_of(CONFIG)[slot, PAD : PAD + 9], 30)
        features_TF = features_of(CONFIG, 9, slot).to(getattr(torch, spread.dtype))
        drafter.observe(make_step([([0] * 9, 0, 9, slot, [0])]), features_TF)
    return drafter.launch(slots, known, shared).wait().token_ids.tolist()


@pytest.mark.parametrize("most_rows", [2048, 0], ids=["fixed", "splits"])
def test_draft_rounds_of_ranks_with_sequences_and_with_none(most_rows: int) -> None:
    spread, counts = FusedSpread(most_rows=most_rows), (3, 0, 1, 5)

    def rank(peers: ThreadPeers) -> list[list[int]] | None:
        return draft(spread, spread.dispatch(peers), counts[peers.rank], shared=8)

    found = run_ranks(4, rank)
    assert found == [draft(spread, None, count, 0) for count in counts]
    assert [tokens and len(tokens) for tokens in found] == [3, None, 1, 5] and min(map(min, found[0])) >= 0
