"""Index queries turned and rounded to FP4: Triton on CPU under the interpreter and on a GPU, bit-equal to the twin, timed."""

import pytest
import torch
from deepinfer.kernels.triton_rotate_index_q import rotate_quantise_index_q
from row_cases import plain_copy
from torch import Tensor

from deepinfer.ops import indexer as twins

HEADS, DIMS = 32, 128


def rotation_inputs(rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Queries of many sizes, among them NaN, infinity, zeros and subnormal numbers; cosines and sines."""
    draw = torch.Generator(device).manual_seed(rows)
    q = torch.randn(rows, HEADS, DIMS, generator=draw, device=device)
    q = (q * torch.exp(3 * torch.randn(rows, HEADS, 1, generator=draw, device=device))).bfloat16()
    q[0, 0, 3], q[0, 1, 70], q[0, 2], q[0, 3], q[0, 4, :32] = torch.nan, torch.inf, 0, 1e-38, -0.0
    angle = 6 * torch.rand(rows, 32, generator=draw, device=device)
    return q, torch.stack((angle.cos(), angle.sin()), 1).contiguous()


def check_rotation(rows: int, device: str) -> None:
    q, rope = rotation_inputs(rows, device)
    want, got = twins.rotate_quantise_index_q(q, rope), rotate_quantise_index_q(q, rope)
    assert torch.equal(got.isnan(), want.isnan()) and want.isnan().any()
    assert torch.equal(got.view(torch.int16)[~want.isnan()], want.view(torch.int16)[~want.isnan()])


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN is meant
def test_queries_are_turned_and_rounded_as_the_twin_does() -> None:
    check_rotation(3, "cpu")


@pytest.mark.gpu
def test_the_device_turns_and_rounds_as_the_twin_does() -> None:
    check_rotation(77, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [64, 8192])
def test_speed_of_rotation(rows: int, timed) -> None:
    copies = [rotation_inputs(rows, "cuda") for _ in range(2 if rows > 1000 else 32)]
    out = torch.empty_like(copies[0][0])
    calls = [lambda x=x: rotate_quantise_index_q(*x, out) for x in copies]
    moved = rows * (HEADS * DIMS * 4 + 256)
    timed("rotate_quantise_index_q", f"{rows} rows", calls, moved_bytes=moved, peers=plain_copy(moved))
