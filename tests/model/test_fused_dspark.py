"""The draft module of fused operations is the engine's draft module: ring bytes and hidden states, alone and in company."""

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from fused_drafts import (
    MAX_LEN,
    SLOTS,
    Rig,
    cpu_drafter,
    device_drafter,
    draft_weights,
    layout_of,
    tokens_of,
    wide_config,
)
from fused_models import NoWaiting, golden, row_by_row, trained, watched
from small_models import golden_model
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.checkpoint.weights import load_stored
from deepinfer.model.fused.dspark import Block, FusedDSpark
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.speculation.dspark import DSpark
from deepinfer.speculation.dspark_device import DeviceDSpark

DEPTH = 5
RELATIVE = 1e-12  # of float64 hidden states; nothing but the order of sums differs
# of hidden states by kernels against the twins in float64, as a share of what the twins' own bfloat16 costs
MOST_ERROR = 1.25
SEQUENCES = [(0, 107), (1, 5), (5, 41), (2, 1), (3, MAX_LEN)]  # slot, tokens: before and behind the window's length


@pytest.fixture
def rig() -> Rig:
    """The golden model's drafters in float64: windows of 16 keys."""
    small = golden_model()
    both = [
        cpu_drafter(small, "float64", DEPTH),
        device_drafter(small.config, load_stored(golden()), row_by_row(), "float64", depth=DEPTH),
    ]
    return Rig(small.config, both, tokens_of(small.config))


def assert_same_keys(rig: Rig) -> None:
    """Every byte of every ring, snapshots and untouched places too."""
    one, other = (drafter.cache.state for drafter in rig.drafters)
    assert torch.equal(one, other) and (one != 0xFF).any()


def fill(rig: Rig, sequences: list[tuple[int, int]]) -> None:
    """Features of all but the newest token of sequences."""
    pieces = [(slot, 0, length - 1) for slot, length in sequences if length > 1]
    rig.step(*pieces)


def hidden(drafter: DSpark | DeviceDSpark, rig: Rig, sequences: list[tuple[int, int]]) -> Tensor:
    """[S, Q, D] of the blocks behind sequences (slot, tokens)."""
    slots, position_S = (np.array(column) for column in zip(*sequences))
    position_S -= 1
    newest_S = rig.tokens_NL[slots, 3 + position_S]
    if isinstance(drafter, DSpark):
        with torch.inference_mode():
            return drafter._block(torch.from_numpy(newest_S.astype(np.int64)), slots, position_S)
    return block_of(drafter, newest_S, position_S, slots).hidden_SQD


@torch.inference_mode()
def block_of(drafter: DeviceDSpark, newest_S: np.ndarray, position_S: np.ndarray, slots: np.ndarray) -> Block:
    numbers = [torch.tensor(x, dtype=torch.int32, device=drafter.device) for x in (newest_S, position_S, slots)]
    return drafter.model.block(*numbers, drafter._floor_N[numbers[2]], drafter._rings)


def test_context_keys_equal_to_the_byte(rig: Rig) -> None:
    """Chunks longer than a ring, single rows, drafts that are overwritten, snapshots in long chunks and short pieces."""
    rig.step((0, 0, 100), (1, 0, 3), (5, 0, 40), snapshots=[[0, 64, 0], [1, 2, 1]])
    assert_same_keys(rig)
    rig.step((1, 3, 9), (0, 100, 101))
    rig.step((1, 5, 11), (5, 40, 62), snapshots=[[1, 60, 1]])
    assert_same_keys(rig)
    rig.step((2, 64, 80), restores=[[2, 0]])
    assert_same_keys(rig)


def test_hidden_states_of_a_block_equal(rig: Rig) -> None:
    fill(rig, SEQUENCES)
    plain, fused = (hidden(drafter, rig, SEQUENCES) for drafter in rig.drafters)
    assert plain.shape == (len(SEQUENCES), 5, rig.config.hidden_size)
    assert (plain - fused).abs().max() <= RELATIVE * plain.abs().max()


def test_keys_that_replay_left_out_are_not_seen(rig: Rig) -> None:
    rig.step((0, 0, 60), (1, 0, 60), upper_from=[50, 0], window_from=[0, 0])
    sequences = [(0, 61), (1, 61)]
    plain, fused = (hidden(drafter, rig, sequences) for drafter in rig.drafters)
    assert (plain - fused).abs().max() <= RELATIVE * plain.abs().max()
    rig.step((0, 0, 60), upper_from=[0], window_from=[0])
    whole = hidden(rig.drafters[1], rig, sequences)
    assert not torch.equal(whole[0], fused[0]) and torch.equal(whole[1], fused[1])


def test_a_block_that_reaches_behind_the_last_position_equals(rig: Rig) -> None:
    """Its rotations are those of positions that no sequence can have."""
    sequences = [(3, length) for length in range(MAX_LEN - 4, MAX_LEN + 1)]
    fill(rig, [(3, MAX_LEN)])
    for sequence in sequences:
        plain, fused = (hidden(drafter, rig, [sequence]) for drafter in rig.drafters)
        assert (plain - fused).abs().max() <= RELATIVE * plain.abs().max()


def test_it_shares_the_main_models_embedding_head_and_positions() -> None:
    small = golden_model()
    config = msgspec.structs.replace(small.config, candidate_block_size=8)
    layout = layout_of(config, "float32", DEPTH)
    stored = load_stored(golden())
    trunk = FusedModel(config, stored, twins(), layout=layout, token_classes=small.classes, max_positions=MAX_LEN)
    model = FusedDSpark(config, stored, twins(), trunk, layout=layout)
    assert model.embed_VD is trunk.embed_VD and model.head_VD is trunk.head_VD


def test_a_cache_without_draft_rings_is_refused() -> None:
    layout = CacheLayout.of(trained().config, dtype="float32", block_tokens=16, backtrack=6)
    with pytest.raises(AssertionError, match="a ring per draft layer"):
        FusedDSpark(trained().config, {}, twins(), None, layout=layout)  # type: ignore[arg-type]


def test_nothing_waits_and_every_round_launches_the_same() -> None:
    """The same operations on tensors of the same shapes whatever the sequences: a graph of one round serves others."""
    calls: list[tuple[str, list[tuple[int, ...]]]] = []

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        calls.append((name, [tuple(x.shape) for x in arguments if isinstance(x, Tensor)]))

    config = golden_model().config
    drafter = device_drafter(config, load_stored(golden()), watched(row_by_row(), note), "bfloat16", depth=DEPTH)
    rig, lists = Rig(config, [drafter], tokens_of(config)), []
    with NoWaiting():
        fill(rig, SEQUENCES)
        known = rig.on_device(SEQUENCES)
        for slots in ([0], [0, 1], [2, 3], [5, 1]):
            calls.clear()
            drafter.launch(np.array(slots), known)
            lists.append(list(calls))
    assert len(lists[1]) > 30 and lists[1] == lists[2] == lists[3]


# ---- in any company ----------------------------------------------------------------------------------------------------------


def assert_company_changes_no_bits(drafter: DeviceDSpark, rig: Rig, counts: tuple[int, ...]) -> None:
    """The block of a sequence alone, among others, and beside the padding slot whose ring is full of NaN bytes."""
    fill(rig, SEQUENCES)
    alone = [hidden(drafter, rig, [sequence]) for sequence in SEQUENCES]
    for count in counts:
        some = [(3 * i + count) % len(SEQUENCES) for i in range(count)]
        padding = [(SLOTS, 1)] * (count // 2)
        slots, lengths = (np.array(column) for column in zip(*(SEQUENCES[s] for s in some), *padding))
        newest_S = np.concatenate((rig.tokens_NL[slots[:count], 2 + lengths[:count]], np.full(len(padding), -1)))
        made = block_of(drafter, newest_S, lengths - 1, slots)
        for i, s in enumerate(some):
            assert torch.equal(made.hidden_SQD[i], alone[s][0]), (count, i)
            assert torch.isfinite(alone[s]).all()


def test_company_changes_no_bits() -> None:
    config = golden_model().config
    drafter = device_drafter(config, load_stored(golden()), row_by_row(), "bfloat16", depth=DEPTH)
    assert_company_changes_no_bits(drafter, Rig(config, [drafter], tokens_of(config)), (1, 2, 7, 16))


# ---- on a GPU ----------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def wide_weights() -> dict[str, Tensor]:
    return draft_weights(wide_config(), "cuda")


def wide_rig(*how: tuple[DeviceOps, str]) -> Rig:
    """Drafters of a width that kernels take, with these operations and dtypes, on a GPU."""
    config = wide_config()
    drafters: list[DSpark | DeviceDSpark] = [
        device_drafter(config, wide_weights(), ops, dtype, depth=DEPTH, device="cuda") for ops, dtype in how
    ]
    return Rig(config, drafters, tokens_of(config))


def hopper_ops() -> DeviceOps:
    from deepinfer.ops.hopper import hopper

    return hopper()


@pytest.mark.gpu
def test_kernels_are_as_near_to_float64_as_their_twins() -> None:
    rig = wide_rig((twins(), "float64"), (twins(), "bfloat16"), (hopper_ops(), "bfloat16"))
    fill(rig, SEQUENCES)
    exact, twin, kernels = (hidden(drafter, rig, SEQUENCES).double() for drafter in rig.drafters)
    errors = [(x - exact).norm() / exact.norm() for x in (twin, kernels)]
    print(f"relative errors: twins in bfloat16 {errors[0]:.5f}, kernels {errors[1]:.5f}")
    assert errors[1] <= MOST_ERROR * errors[0] and errors[0] < 0.1


@pytest.mark.gpu
def test_company_changes_no_bits_on_a_gpu() -> None:
    rig = wide_rig((hopper_ops(), "bfloat16"))
    drafter = rig.drafters[0]
    assert isinstance(drafter, DeviceDSpark)
    assert_company_changes_no_bits(drafter, rig, (1, 2, 4, 8, 33, 64))


@pytest.mark.gpu
def test_context_keys_do_not_depend_on_their_step() -> None:
    """One step, several chunks, single rows: the same bytes."""
    rigs = [wide_rig((hopper_ops(), "bfloat16")) for _ in range(2)]
    rigs[0].step((0, 0, 200), (1, 0, 60))
    for first, end in ((0, 77), (77, 199), (199, 200)):
        rigs[1].step((0, first, end))
    rigs[1].step((1, 0, 60))
    one, other = (rig.drafters[0].cache.state for rig in rigs)
    assert torch.equal(one, other)
