"""Mean of a row's residual streams, into columns of a wider tensor, one launch. Twin: deepinfer/ops/hyper_border.py.

Legend: T rows · N streams · D hidden.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import as_bf16
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

PIECE = 1024  # columns of a program


@triton.jit
def _stream_mean(x_ptr, out_ptr, out_stride, width, STREAMS: tl.constexpr, PIECE: tl.constexpr):
    wait_for_earlier_launches()
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    there = at < width
    SHARE: tl.constexpr = 1.0 / STREAMS  # exact
    x_ptr += row * STREAMS * width
    total = tl.load(x_ptr + at, mask=there).to(tl.float32) * SHARE
    for stream in tl.static_range(1, STREAMS):
        total = total + tl.load(x_ptr + stream * width + at, mask=there).to(tl.float32) * SHARE
    tl.store(out_ptr + row * out_stride + at, as_bf16(total), mask=there)


def stream_mean(x_TND: Tensor, out_TD: Tensor) -> Tensor:
    """As the twin; bfloat16, a power of two of streams: their shares are exact."""
    rows, streams, width = x_TND.shape
    assert x_TND.dtype == out_TD.dtype == torch.bfloat16 and x_TND.is_contiguous(), "streams are contiguous bfloat16"
    assert out_TD.stride(1) == 1 and streams & (streams - 1) == 0, "adjacent columns, a power of two of streams"
    if rows:
        _stream_mean[(rows, triton.cdiv(width, PIECE))](
            x_TND, out_TD, out_TD.stride(0), width, STREAMS=streams, PIECE=PIECE, num_warps=4, enable_fp_fusion=False,
            **OVERLAP,
        )  # fmt: skip
    return out_TD
