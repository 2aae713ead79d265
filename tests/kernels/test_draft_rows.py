"""Both ends of a round of drafting by the kernels: number for number the twins', and nothing else is touched."""

import numpy as np
import pytest
import torch
from deepinfer.kernels import triton_draft_rows as kernels
from row_cases import DEVICES, random_rope
from torch import Tensor

from deepinfer.ops import draft_rows as twins
from deepinfer.ops.decode_rows import SequenceTensors
from deepinfer.ops.draft_rows import DraftShape
from deepinfer.speculation.calibration import Calibration, Fit

SLOTS, LENGTH, DEPTH, PAD = 9, 60, 4, 2
SHAPE = DraftShape(pad=PAD, slots=5, noise=77, window=20, ring_slots=26)


def some_sequences(device: str) -> SequenceTensors:
    """The last slot is the padding slot; slots 0 to 3 are at their end, and close to it."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 999, (SLOTS + 1, PAD + LENGTH + DEPTH + 1))
    num_tokens, ends = rng.integers(5, LENGTH, SLOTS + 1), np.full(SLOTS + 1, LENGTH)
    num_tokens[4:7], ends[:4] = (1, 20, 59), num_tokens[:4] + np.arange(4)
    num_tokens[-1], ends[-1] = 1, 9
    numbers = [torch.from_numpy(x).to(device, torch.int32) for x in (tokens, num_tokens, ends)]
    drafts = torch.full((SLOTS + 1, DEPTH), -1, dtype=torch.int32, device=device)
    return SequenceTensors(*numbers, drafts, torch.zeros(SLOTS + 1, DEPTH, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slots", [[5], [8, 0, 1, 2, 3], [6, 4, 7, 8, 5, SLOTS, SLOTS]])
def test_rows_are_the_twins(slots: list[int], device: str) -> None:
    sequences, rope = some_sequences(device), random_rope(3, LENGTH + 5, 16, device)
    floor_M = torch.tensor([0, 0, 0, 0, 0, 12, 0, 3, 50, 0, 7, 7], dtype=torch.int32, device=device)
    slots_S = torch.tensor(slots, device=device)
    going_S = torch.ones(len(slots), dtype=torch.bool, device=device)
    going_S[1:2] = False
    given = slots_S, going_S, sequences, floor_M, rope, SHAPE
    found, wanted = kernels.draft_rows(*given), twins.draft_rows(*given)
    for name, one, other in zip(found._fields, found, wanted):
        assert one.dtype == other.dtype and torch.equal(one, other), name
    assert (found.newest_S >= 0).any() and (found.window_rows_TW >= 0).any()


def test_sequences_draft_that_have_room_for_two_tokens() -> None:
    sequences, going_S = some_sequences("cpu"), torch.ones(6, dtype=torch.bool)
    slots_S = torch.tensor([0, 1, 2, 3, 5, SLOTS])
    made = twins.draft_rows(
        slots_S, going_S, sequences, torch.zeros(SLOTS + 1, dtype=torch.int32), random_rope(3, LENGTH + 5, 16), SHAPE
    )
    assert (made.newest_S >= 0).tolist() == [False, False, True, True, True, False]
    assert made.newest_S[4] == sequences.tokens_NL[5, PAD + 19] and made.position_S[4] == 19
    window = made.window_rows_TW[20]
    assert window.tolist() == [-1] + [5 * 26 + p for p in range(19)], "19 positions before the newest token"
    assert made.token_ids_T[20:25].tolist() == [int(made.newest_S[4]), 77, 77, 77, 77]


def calibration() -> Calibration:
    fits = [
        Fit(verify="coupled", temperature=t, scale=(0.5 + t, 2.0, 1.0, 0.1, 3.0), offset=(0.0, -1.0, t, 0.2, 0.3))
        for t in (0.0, 0.5, 1.0)
    ]
    return Calibration(tuple(fits), 5)


def some_drafts(device: str) -> tuple[Tensor, ...]:
    """Of twelve sequences: evidence of all sizes, temperatures on and beside what was fitted."""
    rng = np.random.default_rng(2)
    evidence = rng.normal(size=(12, DEPTH)).astype(np.float32) * 20
    evidence[0, :3], evidence[1] = [np.nan, np.inf, -np.inf], 0
    tokens = rng.integers(0, 99, (12, DEPTH)).astype(np.int32)
    tokens[2, 1:], tokens[3] = -1, -1
    temperature = np.array([0, 0.25, 0.2500001, 0.5, 0.75, 1, 7, 1e-6, 0.3, 0.9, 0.1, 0.0])
    return tuple(torch.from_numpy(x).to(device) for x in (tokens, evidence, temperature))


def weigh(ops: object, device: str, sequences: SequenceTensors, slots: list[int]) -> Tensor:
    tokens, evidence, temperature = (x[: len(slots)] for x in some_drafts(device))
    host = calibration()
    fits = [torch.from_numpy(x).to(device) for x in (host.temperature_F, host.scale_FK, host.offset_FK)]
    return ops.weigh_drafts(tokens, evidence, temperature, *fits, torch.tensor(slots, device=device), sequences)  # type: ignore[attr-defined]


def test_the_twin_weighs_as_the_host_does() -> None:
    sequences, slots = some_sequences("cpu"), [3, 0, 4, 1, 2, 5, 8, 6, 7]
    out = weigh(twins, "cpu", sequences, slots)
    tokens, evidence, temperature = (x[: len(slots)].numpy() for x in some_drafts("cpu"))
    with np.errstate(invalid="ignore"):
        chances = np.where(tokens >= 0, calibration()(evidence.astype(np.float64), temperature), np.float32(0))
    assert np.array_equal(out[:, :DEPTH].numpy(), tokens)
    np.testing.assert_allclose(out[:, DEPTH:].view(torch.float32).numpy(), chances, rtol=2e-7, atol=1e-38)
    assert torch.equal(sequences.drafts_NK[slots], out[:, :DEPTH])
    assert torch.equal(sequences.confidence_NK[slots].view(torch.int32), out[:, DEPTH:])
    assert (sequences.drafts_NK[SLOTS] == -1).all() and chances[0].tolist()[:3] == [0, 1, 0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slots", [[4], [3, 0, 4, 1, 2, 5, 8]])
def test_weighed_drafts_are_the_twins(slots: list[int], device: str) -> None:
    mine, other = some_sequences(device), some_sequences(device)
    found, wanted = weigh(kernels, device, mine, slots), weigh(twins, device, other, slots)
    assert torch.equal(found[:, :DEPTH], wanted[:, :DEPTH]) and torch.equal(mine.drafts_NK, other.drafts_NK)
    chances = [x[:, DEPTH:].view(torch.float32) for x in (found, wanted)]
    torch.testing.assert_close(*chances, rtol=2e-7, atol=1e-38)
    assert torch.equal(mine.confidence_NK[slots].view(torch.int32), found[:, DEPTH:])


def test_layouts_are_checked() -> None:
    sequences, floor_M = some_sequences("cpu"), torch.zeros(SLOTS + 1, dtype=torch.int32)
    given = sequences, floor_M, random_rope(3, LENGTH + 5, 16), SHAPE
    slots_S, going_S = torch.tensor([1, 2]), torch.ones(2, dtype=torch.bool)
    with pytest.raises(AssertionError, match="slots are contiguous int64"):
        kernels.draft_rows(slots_S.int(), going_S, *given)
    with pytest.raises(AssertionError, match="a bool a sequence"):
        kernels.draft_rows(slots_S, going_S[:1], *given)
    with pytest.raises(AssertionError, match="3 drafts for sequences of 4"):
        tokens = torch.zeros(2, 3, dtype=torch.int32)
        fits = [torch.zeros(1), torch.zeros(1, 5), torch.zeros(1, 5)]
        kernels.weigh_drafts(
            tokens, tokens.float(), torch.zeros(2).double(), *(x.double() for x in fits), slots_S, sequences
        )
