"""What the device knows of sequences is what the host's mirror knows, and nothing waits for it to be written."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.engine.decode_state import DecodeState
from deepinfer.interfaces import Drafts, StepPlan
from deepinfer.model.fused.sequences import NO_TOKEN, DeviceSequences

SLOTS, LENGTH, NGRAM, DEPTH = 5, 40, 4, 3
NOTHING = np.zeros(0, dtype=np.int64)


@pytest.fixture
def both() -> tuple[DecodeState, DeviceSequences]:
    return DecodeState(SLOTS, LENGTH, NGRAM, DEPTH), DeviceSequences(SLOTS, LENGTH, NGRAM, DEPTH)


def assert_same(state: DecodeState, device: DeviceSequences) -> None:
    assert device.tokens_NL[:SLOTS, : state.tokens_NL.shape[1]].tolist() == state.tokens_NL.tolist()
    assert device.num_tokens_N[:SLOTS].tolist() == state.num_tokens.tolist()
    assert device.length_end_N[:SLOTS].tolist() == state.length_end.tolist()
    assert device.drafts_NK[:SLOTS].tolist() == state.drafts_NK.tolist()
    assert device.confidence_NK[:SLOTS].tolist() == state.confidence_NK.tolist()
    assert_padding_is_untouched(device)


def assert_padding_is_untouched(device: DeviceSequences) -> None:
    slot = device.padding_slot
    assert device.tokens_NL[slot].tolist() == [NO_TOKEN] * device.pad + [0] * (LENGTH + DEPTH + 1)
    assert (int(device.num_tokens_N[slot]), int(device.length_end_N[slot])) == (1, 2)
    assert (device.drafts_NK[slot] == NO_TOKEN).all()


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def tensors(*arrays: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def chunks(slots: np.ndarray, starts: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> StepPlan:
    zeros = np.zeros(len(slots), dtype=np.int64)
    tables = np.zeros((len(slots), 1), dtype=np.int64)
    sampled = np.ones(len(slots), dtype=bool)
    return StepPlan(slots, 0, tables, starts, rows, tokens, sampled, zeros, zeros, zeros)


def test_a_life_of_sequences_is_the_hosts(both: tuple[DecodeState, DeviceSequences]) -> None:
    """Admitted, prefilled in chunks, grown, drafted for, taken back to a chunk, and replaced by another."""
    state, device = both
    for one in both:
        one.admit(1, np.arange(10, 17), 30)
        one.admit(4, np.arange(50, 53), 40)
    assert_same(state, device)
    parts = ids(1, 4), ids(2, 0), ids(3, 3), ids(12, 13, 14, 50, 51, 52)
    state.resolve(chunks(*parts))
    device.put_chunks(*parts)
    assert_same(state, device)
    for slots, counts in (
        (ids(4, 1), ids(1, 4)),
        (ids(1, 4), ids(0, 2)),
        (
            ids(
                1,
            ),
            ids(
                3,
            ),
        ),
    ):
        tokens = np.arange(100, 100 + counts.sum())
        state.append(slots, tokens, counts)
        starts = np.concatenate(([0], np.cumsum(counts)))
        device.append(*tensors(slots, tokens, starts, counts))
        assert_same(state, device)
        drafts = ids(*range(7, 7 + len(slots) * DEPTH)).reshape(-1, DEPTH)
        confidence = np.linspace(0, 1, drafts.size, dtype=np.float32).reshape(drafts.shape)
        state.keep_drafts(slots, Drafts(drafts, confidence))
        device.keep_drafts(*tensors(slots, drafts, confidence))
        assert_same(state, device)
    device.put_chunks(NOTHING, NOTHING, NOTHING, NOTHING)
    for one in both:
        one.admit(1, ids(3, 4), 9)
    assert_same(state, device)


def test_a_sequence_that_fills_its_row_writes_into_no_other(both: tuple[DecodeState, DeviceSequences]) -> None:
    state, device = both
    for one in both:
        one.admit(2, np.arange(LENGTH - 1), LENGTH)
        one.admit(3, np.arange(5), LENGTH)
    state.append(ids(2, 3), ids(9, 8), ids(1, 1))
    device.append(*tensors(ids(2, 3), ids(9, 8), ids(0, 1), ids(1, 1)))
    assert_same(state, device)


def test_padding_sequences_get_nothing(both: tuple[DecodeState, DeviceSequences]) -> None:
    """Twice in one call, between and behind live ones, as a step of fixed size has them."""
    state, device = both
    for one in both:
        one.admit(0, np.arange(6), LENGTH)
        one.admit(3, np.arange(4), LENGTH)
    pad = device.padding_slot
    state.append(ids(3, 0), ids(21, 22, 23), ids(2, 1))
    device.append(*tensors(ids(3, pad, 0, pad), ids(21, 22, 23, 77, 78), ids(0, 2, 2, 3, 3), ids(2, 0, 1, 0)))
    assert_same(state, device)


class OnlyLaunches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func.name() not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"), func.name()
        return func(*args, **(kwargs or {}))


def test_nothing_waits(both: tuple[DecodeState, DeviceSequences]) -> None:
    _, device = both
    with OnlyLaunches():
        with pytest.raises(AssertionError):
            device.num_tokens_N.sum().item()
        device.admit(1, np.arange(4), 30)
        device.put_chunks(ids(1), ids(0), ids(4), np.arange(4))
        device.append(*tensors(ids(1), ids(9), ids(0), ids(1)))
        device.keep_drafts(*tensors(ids(1), ids(1, 2, 3).reshape(1, 3), np.ones((1, 3), dtype=np.float32)))
    assert device.num_tokens_N[1] == 5
