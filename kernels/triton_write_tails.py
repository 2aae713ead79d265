"""Values and gates of tokens that wait for a partner, to their places, one launch. Twin: deepinfer/ops/stored_places.py.

Legend: M rows written · T rows · C columns of a product · A, S blocks of tails, places of one · X numbers of a place.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

PIECE = 1024  # numbers of a program


@triton.jit
def _write_tails(
    tail_ptr, raw_ptr, rows_ptr, places_ptr, tail_stride, raw_stride, tail_places, width, PIECE: tl.constexpr
):
    wait_for_earlier_launches()
    at = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    there = at < width
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    place = tl.load(places_ptr + tl.program_id(0))
    to_ptr = tail_ptr + (place // tail_places).to(tl.int64) * tail_stride + place % tail_places * width
    numbers = tl.load(raw_ptr + row * raw_stride + at, mask=there).to(tail_ptr.dtype.element_ty)
    tl.store(to_ptr + at, numbers, mask=there)


def write_tails(tail_ASX: Tensor, raw_TC: Tensor, rows_M: Tensor, places_M: Tensor) -> None:
    """As the twin. Places that two rows are written to get one number of each column, of either row."""
    width = tail_ASX.shape[2]
    assert tail_ASX.stride()[1:] == (width, 1) and raw_TC.stride(1) == 1, (
        "places of a block, and numbers of a row, are adjacent"
    )
    assert raw_TC.shape[1] >= width, f"rows have {raw_TC.shape[1]} numbers, a place {width}"
    for numbers in (rows_M, places_M):
        assert numbers.dtype == torch.int32 and numbers.is_contiguous(), "row numbers are contiguous int32"
    if len(rows_M):
        _write_tails[(len(rows_M), triton.cdiv(width, PIECE))](
            tail_ASX, raw_TC, rows_M, places_M, tail_ASX.stride(0), raw_TC.stride(0), tail_ASX.shape[1], width,
            PIECE=PIECE, num_warps=4, **OVERLAP,
        )  # fmt: skip
