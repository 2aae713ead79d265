"""Tokens and drafts that a step leaves behind: the twins' numbers, and nothing else is touched."""

import pytest
import torch
from deepinfer.kernels.triton_sequence_tokens import append_tokens, keep_drafts
from row_cases import DEVICES

from deepinfer.ops import sequence_tokens as twins
from deepinfer.ops.decode_rows import SequenceTensors

SLOTS, PAD, LENGTH, DEPTH = 7, 3, 30, 5


def some_sequences(device: str, depth: int = DEPTH) -> SequenceTensors:
    generator = torch.Generator().manual_seed(1)
    tokens, drafts = (
        torch.randint(0, 999, (SLOTS + 1, n), generator=generator).int() for n in (PAD + LENGTH + depth + 1, depth)
    )
    num_tokens = torch.tensor([3, 9, LENGTH, 1, 7, 22, 5, 1], dtype=torch.int32)
    confidence = torch.rand(SLOTS + 1, depth, generator=generator)
    numbers = (tokens, num_tokens, torch.full((SLOTS + 1,), LENGTH, dtype=torch.int32), drafts, confidence)
    return SequenceTensors(*(x.to(device) for x in numbers))


def assert_same(mine: SequenceTensors, other: SequenceTensors) -> None:
    for name, one, two in zip(mine._fields, mine, other):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("depth", [0, DEPTH])
def test_tokens_are_appended(depth: int, dtype: torch.dtype, device: str) -> None:
    """None, some and all that fit; the padding slot twice."""
    counts = [min(n, depth + 1) for n in (2, 0, 6, 1, 0, 0)]
    starts = [0, 2, 2, 8, 9, 9, 9]
    arrays = [4, 2, 1, 0, SLOTS, SLOTS], list(range(100, 112)), starts, counts
    mine, other = some_sequences(device, depth), some_sequences(device, depth)
    for append, sequences in ((append_tokens, mine), (twins.append_tokens, other)):
        append(sequences, PAD, *(torch.tensor(array, dtype=dtype, device=device) for array in arrays))
    assert_same(mine, other)
    assert mine.num_tokens_N[4] == 7 + counts[0] and mine.tokens_NL[4, PAD + 7] == 100


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_drafts_are_kept(dtype: torch.dtype, device: str) -> None:
    slots = torch.tensor([5, 0, SLOTS, SLOTS], dtype=dtype, device=device)
    tokens = torch.arange(4 * DEPTH, dtype=dtype, device=device).view(4, DEPTH)
    tokens[2:] = -1
    confidence = torch.linspace(0, 1, 4 * DEPTH, device=device).view(4, DEPTH)
    confidence[2:] = 0
    mine, other = some_sequences(device), some_sequences(device)
    for keep, sequences in ((keep_drafts, mine), (twins.keep_drafts, other)):
        keep(sequences, slots, tokens, confidence)
    assert_same(mine, other)
    assert mine.drafts_NK[5].tolist() == list(range(DEPTH))
