"""On a GPU: steps with chunks of prompts as CUDA graphs are direct launches, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chunk_worlds import ChunkWorlds
from decode_worlds import Worlds
from fused_models import wide_model
from test_decode_graphs import nothing_waits, on_kernels

from deepinfer.interfaces import StepPlan
from deepinfer.model.fused.chunk_step import ChunkStep, chunk_sizes
from deepinfer.model.fused.step_graphs import GraphPool

pytestmark = pytest.mark.gpu

SLOTS, LENGTH, MOST_ROWS = 9, 1900, 1024


def worlds(seed: int, name: str = "wide") -> ChunkWorlds:
    return ChunkWorlds(on_kernels(name), num_slots=SLOTS, max_model_len=LENGTH, most_rows=MOST_ROWS, seed=seed)


@pytest.mark.parametrize("name", ["wide", "trained"])
def test_graphs_are_the_hosts_steps_bit_for_bit(name: str) -> None:
    """Random steps of long chunks, short ones and single rows; graphs come back."""
    both, done = worlds(1, name), np.zeros(SLOTS, dtype=np.int64)
    chunks = both.chunk_step(graphs=True, features=True, row_sizes=chunk_sizes(MOST_ROWS), pool=GraphPool())
    for number in range(24):
        pieces = both.pieces(done, (1, 1, 1, 5, 7, 60, 129, 200, 700))
        if not pieces:
            break
        hidden_TD, padded_TD = both.both(chunks, *pieces)
        assert torch.equal(hidden_TD, padded_TD), number
        both.assert_equal()
    stats = chunks.stats
    assert number > 6 and stats.replays >= number and 2 < stats.captures == chunks.num_graphs < stats.replays


@pytest.mark.parametrize("name", ["wide", "trained"])
def test_chunks_beside_answers_are_the_hosts_steps_bit_for_bit(name: str) -> None:
    """Drafts are handed out on the device. Features and their rows too."""
    model, seen = on_kernels(name), []
    both = Worlds(model, num_slots=SLOTS, max_model_len=LENGTH, depth=5, seed=3, spare_rows=MOST_ROWS)
    chunks = ChunkStep(
        model,
        both.device,
        both.sequences,
        row_sizes=[64, 256, MOST_ROWS],
        graphs=True,
        features=True,
        observe=seen.append,
    )
    answers, texts, done = np.arange(SLOTS - 2), {}, {}
    for slot in answers:
        both.admit(slot, int(both.rng.choice([3, 130, 700])), LENGTH)
    both.go_on(answers, np.ones(len(answers), dtype=np.int64))
    for slot in (SLOTS - 2, SLOTS - 1):
        texts[slot], done[slot] = both.tokens(LENGTH - 1), 0
        for admit in (both.state.admit, both.sequences.admit):
            admit(slot, texts[slot], LENGTH)
    for number in range(10):
        decode = both.rng.permutation(answers)[: both.rng.integers(1, len(answers) + 1)]
        rows = {slot: int(both.rng.choice([1, 3, 40, 150, 400])) for slot in list(texts)[: 1 + number % 2]}
        plan = both.mixed(decode, {slot: texts[slot][done[slot] :][:count] for slot, count in rows.items()}, done)
        assert chunks.takes(plan)
        resolved = both.state.resolve(plan)
        wanted = model.forward_with_features(resolved.step, both.host)
        hidden_TD, count = chunks(plan), resolved.step.num_rows
        made = next(x for x in seen[::-1] if len(x.hidden_TD) == chunks.size(_bound(plan, 5), 1).rows)
        assert torch.equal(hidden_TD[:count], wanted[0]) and torch.equal(made.features_TF[:count], wanted[1]), number
        assert made.positions_T[:count].tolist() == resolved.step.positions.tolist()
        both.assert_equal()
        for slot, length in rows.items():
            done[slot] += length
        both.accept(decode, resolved.num_checked[: len(decode)])
    assert chunks.stats.replays == 10 and chunks.stats.captures == chunks.num_graphs <= 3


def _bound(plan: StepPlan, depth: int) -> int:
    return plan.num_decode + min(plan.num_drafts, plan.num_decode * depth) + plan.num_chunk_rows


@pytest.mark.parametrize("name", ["wide", "trained"])
def test_snapshots_are_the_hosts(name: str) -> None:
    both = worlds(2, name)
    chunks = both.chunk_step(graphs=True, row_sizes=[64, MOST_ROWS])
    for pieces, fields in (
        ([(0, 0, 600), (1, 0, 3)], {"snapshots": [[0, 256, 0], [0, 512, 1]]}),
        ([(0, 600, 604), (1, 3, 130)], {"snapshots": [[1, 128, 3]]}),
        ([(1, 130, 131), (0, 604, 645)], {"snapshots": [[1, 640, 2]]}),
    ):
        hidden_TD, padded_TD = both.both(chunks, *pieces, **fields)
        assert torch.equal(hidden_TD, padded_TD)
        both.assert_equal(tuple(snapshot for *_, snapshot in fields["snapshots"]))
    both.texts[2] = both.texts[0][:640] + both.texts[2][640:]
    both.tables[2, :5] = both.tables[0, :5]
    hidden_TD, padded_TD = both.both(chunks, (1, 131, 132), (2, 640, 700), restores=[[2, 2]])
    assert torch.equal(hidden_TD, padded_TD)
    both.assert_equal((0, 1, 2, 3))


def test_no_launch_of_a_step_waits() -> None:
    both = worlds(3)
    chunks, plan = both.chunk_step(graphs=True), both.plan((0, 0, 100), (3, 0, 1), snapshots=[[0, 100, 0]])
    assert chunks.takes(plan)
    with nothing_waits():
        for _ in range(3):
            chunks(plan)
    assert chunks.stats.replays == 3


def test_a_size_without_memory_is_left_alone() -> None:
    model = on_kernels()
    calls: list[int] = []

    def combine(*args: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("none left")
        return model.ops.combine(*args)

    both = ChunkWorlds(
        wide_model(replace(model.ops, combine=combine)),
        num_slots=2,
        max_model_len=LENGTH,
        most_rows=MOST_ROWS,
        seed=4,
    )
    chunks, plan = both.chunk_step(graphs=True), both.plan((0, 0, 40))
    assert not chunks.takes(plan)
    seen = len(calls)
    assert seen and not chunks.takes(plan) and len(calls) == seen
    assert both.model.forward(both.input((0, 0, 40)), both.padded).isfinite().all(), "the device goes on"
