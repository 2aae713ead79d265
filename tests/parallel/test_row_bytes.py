"""Rows on the wire: what was rounded for FP8 products arrives with the bits it had."""

import pytest
import torch
from torch import Tensor

from deepinfer.ops import native, reference
from deepinfer.parallel.row_bytes import RowBytes, as_bytes, from_bytes

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def difficult_rows() -> Tensor:
    """float64 [T, 96]: all magnitudes, zeros of both signs, groups at the border of a scale, and poisoned ones."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 96, generator=generator, dtype=torch.float64)
    rows *= 2.0 ** torch.randint(-30, 30, (400, 3), generator=generator).repeat_interleave(32, 1)
    rows[0] = 0.0
    rows[1] = -0.0
    rows[2, :32] = torch.linspace(-1e-4, 1e-4, 32)  # where scales end
    for row, largest in enumerate((224.0, 224.1, 232.0, 447.0, 448.0, 448.1, 455.0), start=3):
        rows[row, 0], rows[row, 1:32] = largest, torch.linspace(-1, 1, 31)
    rows[10, 40], rows[11, 70], rows[12, 5] = torch.nan, torch.inf, -torch.inf
    return rows


@pytest.mark.parametrize(("ops", "dtype"), [(reference(), dtype) for dtype in DTYPES] + [(native(), torch.float32)])
def test_rounded_rows_arrive_with_their_bits(ops, dtype: torch.dtype) -> None:
    rounded = ops.quantise_activation(difficult_rows().to(dtype))
    rows = RowBytes(ops, packed=True)
    sent = rows.pack(rounded)
    assert sent.shape == (400, rows.num_bytes(96, dtype)) and sent.dtype == torch.uint8
    at = torch.arange(399, -1, -1)
    for held in (sent, torch.cat((sent, sent[:, :7]), dim=1)[:, : sent.shape[1]]):  # and as part of a longer message
        found = rows.unpack(held, dtype, at)
        poisoned = rounded[at].isnan()
        assert poisoned.any() and torch.equal(found.isnan(), poisoned)
        assert torch.equal(as_bytes(found)[~poisoned.any(1)], as_bytes(rounded[at])[~poisoned.any(1)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_rows_are_their_own_bytes(dtype: torch.dtype) -> None:
    rows, sent = RowBytes(reference(), packed=False), difficult_rows().to(dtype)
    packed = rows.pack(sent)
    assert packed.shape == (400, rows.num_bytes(96, dtype))
    assert torch.equal(as_bytes(rows.unpack(packed, dtype, torch.tensor([3, 3, 10]))), as_bytes(sent[[3, 3, 10]]))


@pytest.mark.parametrize("packed", [False, True])
def test_no_rows_are_bytes_too(packed: bool) -> None:
    rows = RowBytes(native(), packed=packed)
    sent = rows.pack(torch.zeros(0, 64))
    assert sent.shape == (0, rows.num_bytes(64, torch.float32))
    assert rows.unpack(sent, torch.float32, torch.zeros(0, dtype=torch.int64)).shape == (0, 64)


def test_bytes_of_any_layout_and_back() -> None:
    x = torch.arange(24, dtype=torch.int32).view(4, 6)
    for view in (x, x.t(), x[:, 1:4], x[:0], x[:, :0]):
        assert torch.equal(from_bytes(as_bytes(view), torch.int32), view)
