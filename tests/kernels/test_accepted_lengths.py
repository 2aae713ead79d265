"""Accepted lengths: the kernel against its twin."""

import pytest
import torch
from deepinfer.kernels.triton_accepted_lengths import accepted_lengths
from row_cases import DEVICES
from torch import Tensor

from deepinfer.ops import sampling_rows as twin


def case(num_sequences: int, depth: int, device: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator, dtype=torch.int32)

    start_X = torch.cat([whole(0, 1, 1), whole(1, depth + 2, num_sequences).cumsum(0, dtype=torch.int32)])
    token_T, draft_SD = whole(-1, 4, int(start_X[-1])), whole(0, 4, num_sequences, depth)
    for s in range(num_sequences):  # mostly right
        drafts = min(depth, int(start_X[s + 1] - start_X[s]) - 1)
        right = whole(0, 4, drafts) > 0
        tokens = token_T[start_X[s] : start_X[s] + drafts]
        draft_SD[s, :drafts] = torch.where(right, tokens, draft_SD[s, :drafts])
    return token_T.to(device), draft_SD.to(device), start_X.to(device)


def check(num_sequences: int, depth: int, device: str) -> None:
    for seed in range(3):
        inputs = case(num_sequences, depth, device, seed)
        assert torch.equal(accepted_lengths(*inputs), twin.accepted_lengths(*inputs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_sequences", "depth"), [(1, 1), (5, 0), (70, 5), (33, 8)])
def test_equals_the_twin(num_sequences: int, depth: int, device: str) -> None:
    check(num_sequences, depth, device)


@pytest.mark.gpu
@pytest.mark.parametrize("num_sequences", [1, 256, 1000])
def test_speed(num_sequences: int, timed) -> None:
    check(num_sequences, 5, "cuda")
    inputs = case(num_sequences, 5, "cuda", 9)
    moved = sum(x.nbytes for x in inputs) + 4 * num_sequences
    timed(
        "accepted lengths",
        f"{num_sequences} sequences, 5 drafts",
        [lambda: accepted_lengths(*inputs)],
        moved_bytes=moved,
    )
