"""A step with chunks that is padded and reads its rows from a buffer is the host's, to the last bit and byte."""

import numpy as np
import pytest
import torch
from chunk_worlds import ChunkWorlds
from decode_worlds import Worlds
from fused_models import golden, pair

from deepinfer.model.fused.chunk_step import ChunkStep, chunk_sizes, spare_states

SLOTS, LENGTH, MOST_ROWS = (
    5,
    170,
    128,
)  # golden: beyond the window (16), the list (16 entries) and the candidates (8 blocks of 4)


def worlds(seed: int = 1, compact: bool = False) -> ChunkWorlds:
    model = pair(golden, "bfloat16", compact).fused.model
    return ChunkWorlds(model, num_slots=SLOTS, max_model_len=LENGTH, most_rows=MOST_ROWS, seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_random_steps_are_the_hosts(seed: int) -> None:
    """Long chunks, short ones and single rows of any sequences in any order."""
    both, done, sizes = worlds(seed), np.zeros(SLOTS, dtype=np.int64), set()
    chunks = both.chunk_step()
    for _ in range(6):
        pieces = both.pieces(done, (1, 2, 6, 7, 8, 23, 40))
        if not pieces:
            break
        hidden_TD, padded_TD = both.both(chunks, *pieces)
        assert torch.equal(hidden_TD, padded_TD)
        both.assert_equal()
        sizes.add(chunks.size(len(hidden_TD), 1).rows)
    assert len(sizes) > 1 and chunks.stats.direct > 3


def test_snapshots_and_restores_are_the_hosts() -> None:
    """Taken within chunks that the ring does not hold, in short ones, and at their borders."""
    both = worlds()
    chunks = both.chunk_step()
    for pieces, fields in (
        ([(0, 0, 70), (1, 0, 3)], {"snapshots": [[0, 32, 0], [0, 64, 1]]}),
        ([(0, 70, 75), (1, 3, 17)], {"snapshots": [[1, 16, 3]]}),
        ([(1, 17, 18), (0, 75, 81)], {"snapshots": [[1, 80, 2]]}),
    ):
        hidden_TD, padded_TD = both.both(chunks, *pieces, **fields)
        assert torch.equal(hidden_TD, padded_TD)
        both.assert_equal(tuple(snapshot for *_, snapshot in fields["snapshots"]))
    both.texts[2] = both.texts[0][:64] + both.texts[2][64:]
    both.tables[2, :4] = both.tables[0, :4]
    hidden_TD, padded_TD = both.both(chunks, (1, 18, 19), (2, 64, 90), restores=[[2, 1]], snapshots=[[1, 80, 1]])
    assert torch.equal(hidden_TD, padded_TD)
    both.assert_equal((0, 1, 2, 3))
    both.texts[3] = both.texts[0][:80] + both.texts[3][80:]
    both.tables[3, :5] = both.tables[0, :5]
    hidden_TD, padded_TD = both.both(chunks, (3, 80, 95), restores=[[3, 2]])
    assert torch.equal(hidden_TD, padded_TD)
    both.assert_equal()


@pytest.mark.parametrize("compact", [False, True], ids=["masked", "compact"])
def test_floors_are_obeyed_and_rows_that_stay_behind_are_left_to_the_host(compact: bool) -> None:
    both = worlds(2, compact)
    chunks = both.chunk_step()
    dropping = both.plan((0, 0, 40), (1, 0, 9), window_from=[0, 0], upper_from=[30, 0])
    assert chunks.takes(dropping) != compact
    for pieces, upper in (([(0, 0, 40), (1, 0, 9)], [0, 0]), ([(0, 40, 66), (1, 9, 10)], [40, 0])):
        hidden_TD, padded_TD = both.both(chunks, *pieces, window_from=[0, 0], upper_from=upper)
        assert torch.equal(hidden_TD, padded_TD)
    if not compact:
        hidden_TD, padded_TD = both.both(chunks, (0, 66, 100), window_from=[0], upper_from=[90])
        assert torch.equal(hidden_TD, padded_TD)
    both.assert_equal()


def test_a_suffix_that_writes_no_entries_of_its_prefix_is_the_hosts() -> None:
    both = worlds(3)
    chunks = both.chunk_step()
    both.both(chunks, (0, 0, 100))
    both.texts[1] = both.texts[0]
    for cache in (both.direct, both.padded):
        cache.blocks[both.tables[1, :5]] = cache.blocks[both.tables[0, :5]]
    fields = {"window_from": [58], "upper_from": [58], "write_from": [80]}
    hidden_TD, padded_TD = both.both(chunks, (1, 58, 110), **fields)
    assert torch.equal(hidden_TD, padded_TD)
    both.assert_equal()


def test_features_are_those_of_the_hosts_pass() -> None:
    both, seen = worlds(4), []
    chunks = both.chunk_step(features=True, observe=seen.append)
    pieces = (0, 0, 30), (3, 0, 5)
    hidden_TD, features_TF = both.model.forward_with_features(both.input(*pieces), both.direct)
    assert torch.equal(chunks(both.plan(*pieces))[:35], hidden_TD)
    (rows,) = seen
    assert rows.features_TF is not None and torch.equal(rows.features_TF[:35], features_TF)
    assert rows.positions_T[:35].tolist() == [*range(30), *range(5)]
    assert rows.slots_T.tolist() == [0] * 30 + [3] * 5 + [SLOTS] * (len(rows.slots_T) - 35)


@pytest.mark.parametrize("seed", range(2))
def test_chunks_beside_answers_that_only_the_device_knows_are_the_hosts(seed: int) -> None:
    """Drafts are handed out as the device likes; chunks begin anew, go on, and take the place of a sequence that was there."""
    model = pair(golden, "bfloat16").fused.model
    both = Worlds(model, num_slots=4, max_model_len=120, depth=5, seed=seed, spare_rows=64)
    chunks = ChunkStep(model, both.device, both.sequences, row_sizes=[24, 64])
    for slot, length in ((0, 30), (1, 17)):
        both.admit(slot, length, 110)
    both.go_on(np.arange(2), np.ones(2, dtype=np.int64))
    texts, done = {slot: both.tokens(80) for slot in (2, 3)}, {2: 0, 3: 0}
    for number in range(5):
        decode = both.rng.permutation(2)[: 1 + number % 2]
        rows = {slot: int(both.rng.choice([1, 3, 20])) for slot in (2, 3)[: 1 + both.rng.integers(2)]}
        for slot in rows:
            if not done[slot]:
                for admit in (both.state.admit, both.sequences.admit):
                    admit(slot, texts[slot], 110)
        plan = both.mixed(decode, {slot: texts[slot][done[slot] :][:count] for slot, count in rows.items()}, done)
        assert chunks.takes(plan)
        resolved = both.state.resolve(plan)
        hidden_TD = model.forward(resolved.step, both.host)
        assert torch.equal(chunks(plan)[: len(hidden_TD)], hidden_TD)
        both.assert_equal()
        for slot, count in rows.items():
            done[slot] += count
        both.accept(decode, resolved.num_checked[: len(decode)])
    assert max(done.values()) > 20


def test_padding_touches_its_own_slot_and_spare_rows_only() -> None:
    both = worlds(5)
    before = both.padded.state.clone(), both.padded.blocks.clone()
    both.chunk_step(row_sizes=[MOST_ROWS])(both.plan((2, 0, 50)))
    others = [0, 1, 3, 4, *range(SLOTS + 1, SLOTS + 1 + 4)]
    assert torch.equal(before[0][others], both.padded.state[others])
    foreign = [block for block in range(both.padded.num_blocks) if block not in both.tables[2]]
    assert torch.equal(before[1][foreign], both.padded.blocks[foreign])


def test_what_is_too_long_is_left_to_the_host() -> None:
    both = worlds(6)
    assert both.chunk_step(row_sizes=[16]).takes(both.plan((0, 0, 16)))
    assert not both.chunk_step(row_sizes=[16]).takes(both.plan((0, 0, 17)))
    with pytest.raises(AssertionError, match="spare rows"):
        both.chunk_step(row_sizes=[MOST_ROWS * 8])


def test_sizes_are_few_and_have_their_spare_rows() -> None:
    assert chunk_sizes(16) == [16] and chunk_sizes(300) == [16, 32, 64, 128, 256, 384]
    assert chunk_sizes(10_000)[-1] == 2048 == chunk_sizes(2048)[-1] and len(chunk_sizes(2048)) == 11
    assert spare_states([16, 300], 134) == 3 and spare_states([16], 22) == 1 and spare_states([], 22) == 0
